"""Following a log with a node that is unreachable at first: the others are followed, and that one joins later or is a gap."""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.until import until

COUNT = 'i=0; until [ -e "$ORCH_RUN_DIR/enough" ]; do i=$((i+1)); echo "line $i"; sleep 0.05; done'


@pytest.fixture
def orch(hosts: Hosts, tmp_path: Path) -> Orch:
    """orch on the controller, beside an inventory.yaml of three hosts with a short connect timeout."""
    hosts.inventory(tmp_path, ssh={"connect_timeout_s": 2})
    return hosts.orch(tmp_path)


def _start_and_cut_off_h1(orch: Orch, hosts: Hosts) -> str:
    """Start a run whose h1 reaches the other hosts but not the controller."""
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT).stdout.strip()
    until(lambda: all(hosts.outputs(orch, run)), awaited="output on three nodes")
    hosts.block(hosts[1], hosts.controller)
    events = orch.home / "runs" / run / "events.jsonl"
    until(lambda: "others reach it" in events.read_text("utf-8"), awaited="the supervisor's witnesses")
    return run


def _finish(orch: Orch, hosts: Hosts, run: str) -> None:
    for host in hosts.hosts:
        (host.path(orch.node_folder(run, host.name).parents[1]) / "enough").touch()


def _read_until(following: subprocess.Popen[str], *texts: str) -> str:
    """Read its output up to a line that holds one of the texts."""
    assert following.stdout is not None
    printed = ""
    while not any(text in (line := following.stdout.readline()) for text in texts):
        assert line, f"the log ended: {following.stderr.read() if following.stderr else ''}"
        printed += line
    return printed + line


def _rest(following: subprocess.Popen[str]) -> tuple[str, str]:
    assert following.stdout is not None
    assert following.stderr is not None
    # communicate() would leave out what readline() has buffered
    return following.stdout.read(), following.stderr.read()


def test_node_that_is_unreachable_at_first_joins_when_it_is_reachable(orch: Orch, hosts: Hosts) -> None:
    run = _start_and_cut_off_h1(orch, hosts)
    with orch.start("logs", "--follow", run) as following:
        text = "".join(_read_until(following, f"[{name}:") for name in ("h0", "h2", "h0", "h2"))
        assert "[h1:" not in text
        hosts.unblock(hosts[1], hosts.controller)
        text += _read_until(following, "[h1:")
        _finish(orch, hosts, run)
        rest, stderr = _rest(following)
    assert following.returncode == 0, stderr
    assert "warning: h1: " in stderr
    assert "h1 answers again" in stderr
    for rank, host in enumerate(hosts.hosts):
        written = host.path(orch.node_folder(run, host.name)) / f"rank-{rank}.out"
        lines = re.findall(rf"^\[{host.name}:{rank}\] (.*)$", text + rest, re.MULTILINE)
        assert lines == written.read_text("utf-8").splitlines()


def test_lines_that_tail_omits_are_not_printed_for_a_node_that_joins_later(orch: Orch, hosts: Hosts) -> None:
    run = _start_and_cut_off_h1(orch, hosts)
    with orch.start("logs", "--follow", "--tail", "0", run) as following:
        _read_until(following, "[h0:")
        hosts.unblock(hosts[1], hosts.controller)
        text = _read_until(following, "[h1:")
        _finish(orch, hosts, run)
        text += _rest(following)[0]
    lines = re.findall(r"^\[h1:1\] (.*)$", text, re.MULTILINE)
    written = hosts[1].path(orch.node_folder(run, "h1")) / "rank-1.out"
    assert "line 1" not in lines
    assert lines == written.read_text("utf-8").splitlines()[-len(lines) :]


@pytest.mark.extended
@pytest.mark.slow
def test_node_that_stays_unreachable_is_a_gap_and_exit_code_4(orch: Orch, hosts: Hosts) -> None:
    run = _start_and_cut_off_h1(orch, hosts)
    with orch.start("logs", "--follow", run) as following:
        text = _read_until(following, "[h0:")
        hosts[1].kill()
        rest, stderr = _rest(following)
    assert following.returncode == 4, stderr
    assert re.search(r"^\[h1:-\] gap: h1 cannot be read", text + rest, re.MULTILINE), stderr
    assert re.search(r"h1: .*\(1 of 3\)$", stderr, re.MULTILINE)


@pytest.mark.extended
@pytest.mark.slow
def test_follower_on_another_machine_reports_a_node_that_died(orch: Orch, hosts: Hosts) -> None:
    """That machine has no record of the supervisor, which fails the run; the nodes only report that they were stopped."""
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT).stdout.strip()
    elsewhere = replace(orch, env={"ORCH_HOME": str(orch.cwd / "elsewhere")})
    with elsewhere.start("logs", "--follow", run, "-i", "inventory.yaml") as following:
        text = "".join(_read_until(following, f"[{name}:") for name in ("h0", "h1", "h2", "h1", "h0"))
        hosts[1].kill()
        rest, stderr = _rest(following)
    assert following.returncode == 4, stderr
    assert re.search(r"^\[h1:-\] gap: h1 cannot be read", text + rest, re.MULTILINE)
    assert re.search(r"h1: .*\(1 of 3\)$", stderr, re.MULTILINE)
    for rank, host in ((0, hosts[0]), (2, hosts[2])):
        written = host.path(orch.node_folder(run, host.name)) / f"rank-{rank}.out"
        lines = re.findall(rf"^\[{host.name}:{rank}\] (.*)$", text + rest, re.MULTILINE)
        assert lines == written.read_text("utf-8").splitlines()


def test_follow_ends_with_4_if_no_node_can_be_reached(orch: Orch, hosts: Hosts) -> None:
    run = _start_and_cut_off_h1(orch, hosts)
    hosts.controller.link(up=False)
    assert "of 3" in orch("logs", "--follow", run, code=4).stderr
    hosts.controller.link(up=True)
    with orch.start("logs", "--follow", run) as following:
        _read_until(following, "[h0:")
        following.send_signal(signal.SIGINT)
        _, stderr = _rest(following)
    assert following.returncode == 130
    assert "the run continues" in stderr
