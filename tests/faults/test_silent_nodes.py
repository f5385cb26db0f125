"""Nodes that the supervisor cannot reach for a while: which silence counts as a dead node, and which as a bad connection."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

SLEEPERS = ("sh", "-c", "echo up; exec sleep 1000")


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of three nodes with one rank each."""
    farm.inventory(tmp_path, nodes=3)
    return Orch(tmp_path)


def _started(orch: Orch) -> str:
    """Start a detached run whose ranks all sleep, and wait until all nodes answer."""
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    heartbeats = [folder / "supervised" for folder in orch.node_folders(run)]
    until(lambda: all(file.exists() for file in heartbeats), awaited="all nodes to answer")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="the recorded state")
    return run


def _record(orch: Orch, run: str) -> dict[str, Any]:
    [record] = [entry for entry in orch.records() if entry["id"] == run]
    return record


def _events_text(orch: Orch, run: str) -> str:
    return (orch.home / "runs" / run / "events.jsonl").read_text("utf-8")


def _return_count(orch: Orch, run: str) -> int:
    return _events_text(orch, run).count("answers again")


@pytest.mark.extended
@pytest.mark.slow
def test_run_continues_while_all_its_nodes_refuse_connections(orch: Orch, farm: Farm) -> None:
    """As with a bastion that restarts, or a VPN that answers for hosts that it cannot reach."""
    run = _started(orch)
    with farm.down():
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 10, awaited="ten seconds to pass")
    until(lambda: _return_count(orch, run) == 3, awaited="the nodes to answer")
    assert _record(orch, run)["state"] == "RUNNING", _events_text(orch, run)
    orch("stop", run)


def test_run_continues_while_a_node_refuses_connections_whose_host_others_reach(orch: Orch, farm: Farm) -> None:
    """Its sshd is down, as killed for lack of memory; its ranks are not."""
    run = _started(orch)
    reached = "n2 does not answer this machine, but others reach it: the run continues"
    with farm.only(2):
        until(lambda: reached in _events_text(orch, run), awaited="the result of the witnesses")
    until(lambda: "n2 answers again" in _events_text(orch, run), awaited="n2 to answer")
    assert _record(orch, run)["state"] == "RUNNING"
    orch("stop", run)


def test_node_that_answers_with_an_error_is_polled_further(orch: Orch) -> None:
    run = _started(orch)
    heartbeat = orch.node_folder(run, "n1") / "supervised"
    heartbeat.unlink()
    heartbeat.mkdir()
    until(lambda: "n1: " in _events_text(orch, run), awaited="the error")
    heartbeat.rmdir()
    until(lambda: "n1 answers again" in _events_text(orch, run), awaited="the node to answer")
    orch("stop", run)


def test_node_that_refuses_the_login_is_not_retried(orch: Orch, farm: Farm) -> None:
    run = _started(orch)
    with farm.restart_with_new_host_key():
        farm.drop_connections()
        until(lambda: orch.supervisor(run) is None, awaited="the supervisor to give up")
        assert _events_text(orch, run).count("continues without supervision") == 3
    assert _record(orch, run)["state"] == "RUNNING"
    assert f"nobody supervises this run, and it continues; `orch attach {run}`" in orch("status", run).stderr
    orch("stop", run)


def test_supervisor_whose_record_cannot_be_written_ends_with_the_reason_in_its_log(orch: Orch, farm: Farm) -> None:
    run = _started(orch)
    pid = orch.supervisor(run)
    events = orch.home / "runs" / run / "events.jsonl"
    events.unlink()
    events.mkdir()
    farm.drop_connections()
    until(lambda: orch.supervisor(run) != pid, awaited="the supervisor to end")
    log = orch.home / "runs" / run / "supervisor.log"
    until(lambda: "the threads that poll" in log.read_text("utf-8"), awaited="the reason in its log")
    assert "IsADirectoryError" in log.read_text("utf-8")
    assert "nobody supervises this run" in orch("status", run).stderr
    orch("stop", run)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("before", ["answered before", "never answered"])
def test_only_a_witnesss_reply_is_a_vote_and_a_repeated_result_is_recorded_once(
    farm: Farm, tmp_path: Path, before: str
) -> None:
    """Until n2 has answered once, the other nodes have only this machine's alias for it, which they cannot resolve."""
    config = tmp_path / "ssh_config"
    ssh_config = farm.ssh_config.read_text("utf-8")
    config.write_text(ssh_config)
    farm.inventory(tmp_path, nodes=3, aliases=True, ssh={"config": str(config), "connect_timeout_s": 2})
    orch = Orch(tmp_path)
    run = _started(orch)
    if before == "never answered":
        orch.kill_supervisor(run)
    config.write_text(f"Host n2\n  ProxyCommand sleep 1000\n{ssh_config}")
    farm.drop_connections()
    if before == "never answered":
        orch("attach", "--detach", run)
    vote = "but others reach it" if before == "answered before" else "and no other node can check"
    until(lambda: f"n2 does not answer this machine, {vote}" in _events_text(orch, run), awaited=vote)
    begun = time.monotonic()
    status = orch("status", run, code=4)
    assert re.findall(r"^(n\d) .*(running|no answer)", status.stdout, re.MULTILINE) == [
        ("n0", "running"),
        ("n1", "running"),
        ("n2", "no answer"),
    ]
    assert re.search(r"n2: .* timed out after 2 s \(1 of 3\)", status.stderr)
    until(lambda: time.monotonic() - begun > 11, awaited="two more polls")
    assert _events_text(orch, run).count("does not answer this machine") == 1
    assert _record(orch, run)["state"] == "RUNNING"
    config.write_text(ssh_config)
    until(lambda: "n2 answers again" in _events_text(orch, run), awaited="the node to answer")
    orch("stop", run)
