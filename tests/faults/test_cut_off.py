"""Hosts that are cut off, die and return during a run over ssh."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.run.ownership import agent_owner
from tests.grounds.cli import Orch
from tests.grounds.hosts import Host, Hosts
from tests.until import until

SLEEPERS = ("sh", "-c", "echo up; exec sleep 1000")
# After a line on its stdin, pushes more than all buffers between the two hold.
PUSH = """
import sys
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.ssh import transport as ssh
from orchestrator.errors import Unreachable
ssh.LOST_AFTER_S = 3.0
transport = ssh.SshTransport(Node(name="h1"), SshOptions(config=sys.argv[1]))
channel = transport.open(["sh", "-c", "cat > /dev/null"])
print("connected", flush=True)
sys.stdin.readline()
try:
    channel.write(b"x" * (8 << 20), timeout_s=300)
except Unreachable as error:
    print(error)
transport.close()
"""


@pytest.fixture
def orch(hosts: Hosts, tmp_path: Path) -> Orch:
    """orch on the controller, beside an inventory.yaml of three hosts."""
    hosts.inventory(tmp_path)
    return hosts.orch(tmp_path)


def _started(orch: Orch, hosts: Hosts, *options: str) -> str:
    run = orch("ssh-launch", "--detach", *options, "--", *SLEEPERS).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    until(lambda: hosts.outputs(orch, run) == ["up\n"] * 3, awaited="three ranks")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    return run


def _record(orch: Orch, run: str) -> dict[str, Any]:
    [record] = [entry for entry in orch.records() if entry["id"] == run]
    return record


def _has_ended(orch: Orch, run: str) -> bool:
    return orch.recorded(run) not in ("STARTING", "RUNNING")


def _is_idle(host: Host) -> bool:
    """True if no agent and no rank runs; the far end of a connection may, which ends with it."""
    return not [pid for pid in host.processes() if _is_of_a_run(pid)]


def _is_of_a_run(pid: int) -> bool:
    try:
        environ_and_command = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"ORCH_RUN_ID=" in environ_and_command or b"/runs/" in environ_and_command or agent_owner(pid) is not None


def test_ranks_get_the_heads_address_as_master(orch: Orch) -> None:
    orch("ssh-launch", "--", "sh", "-c", 'echo "$ORCH_NODE $MASTER_ADDR"')
    lines = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert lines == ["h0 10.77.0.1", "h1 10.77.0.1", "h2 10.77.0.1"]


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.extended)])
def test_killed_node_fails_the_run_and_ends_it_on_all_other_nodes(orch: Orch, hosts: Hosts, index: int) -> None:
    run = _started(orch, hosts)
    hosts[index].kill()
    until(lambda: _has_ended(orch, run), awaited="the verdict")
    record = _record(orch, run)
    assert record["state"] == "FAILED"
    gone = re.match(rf"h{index} is gone: it has not answered for (\d+) s, ", record["message"])
    assert gone is not None, record["message"]
    # by the supervisor's own clock; the rest is the time that its queries to the other nodes may take
    assert 7 <= int(gone[1]) < 40
    for host in hosts.hosts:
        until(lambda host=host: _is_idle(host), awaited=f"{host.name} to be idle")  # type: ignore[misc]


@pytest.mark.extended
def test_push_to_a_node_that_is_cut_off_fails_when_no_byte_is_acknowledged(hosts: Hosts) -> None:
    """paramiko alone would write until the kernel gives up, after a quarter of an hour."""
    argv = [*hosts.controller.enter(), sys.executable, "-c", PUSH, str(hosts.ssh_config)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as push:
        try:
            assert push.stdout is not None
            assert push.stdout.readline() == "connected\n"
            hosts[1].link(up=False)
            assert push.communicate("now\n", timeout=60)[0] == "h1: the connection was lost\n"
        finally:
            push.kill()


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, pytest.param(2, marks=pytest.mark.extended)])
def test_node_that_was_cut_off_ends_its_ranks_itself(orch: Orch, hosts: Hosts, index: int) -> None:
    """A head ends its ranks only if a peer has answered it before: a firewall may drop all that it sends."""
    refused = hosts[0].refused_connections()
    run = _started(orch, hosts, "--isolation-timeout", "12s")
    until(lambda: hosts[0].refused_connections() > refused, awaited="a peer's answer to the head")
    hosts[index].link(up=False)
    until(lambda: _has_ended(orch, run), awaited="the verdict")
    assert f"h{index} is gone" in _record(orch, run)["message"]
    events = hosts[index].path(orch.node_folder(run, f"h{index}") / "events.jsonl")
    until(
        lambda: _is_idle(hosts[index]),
        awaited=lambda: f"the cut-off node to be idle: {events.read_text()}",
    )
    orch.kill_supervisor(run)
    hosts[index].link(up=True)
    until(
        lambda: "cut off from the supervisor" in orch("logs", run, code=None).stdout,
        awaited="the agent's reason in the log",
    )


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("direction", ["out", "in"])
def test_node_that_is_cut_off_one_way_ends_its_ranks_itself(orch: Orch, hosts: Hosts, direction: str) -> None:
    """It cannot send, or cannot receive: the run ends on all other nodes, and no second process group is left on that node."""
    run = _started(orch, hosts, "--isolation-timeout", "6s")
    for machine in hosts.other_machines(hosts[1]):
        hosts.block(*((hosts[1], machine) if direction == "out" else (machine, hosts[1])))
    until(lambda: _has_ended(orch, run), awaited="the verdict")
    record = _record(orch, run)
    assert record["state"] == "FAILED"
    assert "h1 is gone" in record["message"]
    for host in hosts.hosts:  # the one that is cut off too, by itself
        until(lambda host=host: _is_idle(host), awaited=f"{host.name} to be idle")  # type: ignore[misc]


@pytest.mark.extended
@pytest.mark.slow
def test_supervisor_ends_the_ranks_of_a_node_that_is_reachable_before_its_isolation_timeout(
    orch: Orch, hosts: Hosts
) -> None:
    run = _started(orch, hosts, "--isolation-timeout", "5m")
    hosts[1].link(up=False)
    until(lambda: _has_ended(orch, run), awaited="the verdict")
    assert not _is_idle(hosts[1])
    hosts[1].link(up=True)
    until(lambda: _is_idle(hosts[1]), awaited="the node to be idle")


@pytest.mark.slow
def test_run_continues_while_its_supervisor_is_cut_off(orch: Orch, hosts: Hosts) -> None:
    run = _started(orch, hosts, "--isolation-timeout", "5s")
    hosts.controller.link(up=False)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 20, awaited="twenty seconds to pass")
    assert _record(orch, run)["state"] == "RUNNING"
    assert not any(_is_idle(host) for host in hosts.hosts)
    hosts.controller.link(up=True)
    until(lambda: "answers again" in _events_text(orch, run), awaited="the nodes to answer")
    orch("stop", run)
    assert all(_is_idle(host) for host in hosts.hosts)


def test_node_that_only_the_supervisor_cannot_reach_continues(orch: Orch, hosts: Hosts) -> None:
    """Only one direction is cut: packets to h1 arrive, its answers are lost."""
    run = _started(orch, hosts, "--isolation-timeout", "5s")
    hosts.block(hosts[1], hosts.controller)
    until(lambda: "others reach it" in _events_text(orch, run), awaited="a witness")
    assert _record(orch, run)["state"] == "RUNNING"
    hosts.unblock(hosts[1], hosts.controller)
    until(lambda: "h1 answers again" in _events_text(orch, run), awaited="the node to answer")
    orch("stop", run)
    assert _record(orch, run)["state"] == "STOPPED"


def _events_text(orch: Orch, run: str) -> str:
    return (orch.home / "runs" / run / "events.jsonl").read_text("utf-8")


@pytest.mark.extended
def test_stopping_one_of_two_runs_leaves_the_other_and_strangers_alone(orch: Orch, hosts: Hosts) -> None:
    first, second = _started(orch, hosts), _started(orch, hosts)
    hosts[0].run("sh", "-c", "cd / && setsid sleep 4321 > /dev/null 2>&1 < /dev/null &")
    orch("stop", first)
    assert [orch.status(run)["state"] for run in (first, second)] == ["STOPPED", "RUNNING"]
    assert [list(host.processes().values()).count("sleep") for host in hosts.hosts] == [2, 1, 1]
    assert f"run {second} is STOPPED" in orch("stop", "--all").stderr
    assert [list(host.processes().values()).count("sleep") for host in hosts.hosts] == [1, 0, 0]
