"""Nodes that the supervisor cannot hear for a while: what counts as a dead node, and what only as a bad line."""

from __future__ import annotations

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
    """A detached run whose ranks all sleep, and whose nodes all answer."""
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    marks = [folder / "supervised" for folder in orch.node_folders(run)]
    until(lambda: all(mark.exists() for mark in marks), awaited="all nodes to answer", deadline_s=30)
    until(lambda: orch.recorded(run) == "RUNNING", awaited="the record to say so")
    return run


def _record(orch: Orch, run: str) -> dict[str, Any]:
    [record] = [one for one in orch.records() if one["id"] == run]
    return record


def _notes(orch: Orch, run: str) -> str:
    return (orch.home / "runs" / run / "events.jsonl").read_text("utf-8")


def _answers_again(orch: Orch, run: str) -> int:
    return _notes(orch, run).count("answers again")


def test_run_goes_on_while_all_of_its_nodes_refuse(orch: Orch, farm: Farm) -> None:
    """A bastion that restarts, a VPN that answers for whom it cannot reach."""
    run = _started(orch)
    with farm.down():
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 10, awaited="ten seconds to pass", deadline_s=30)
    until(lambda: _answers_again(orch, run) == 3, awaited="the nodes to answer", deadline_s=30)
    assert _record(orch, run)["state"] == "RUNNING", _notes(orch, run)
    orch("stop", run)


def test_node_that_refuses_while_others_answer_fails_the_run(orch: Orch, farm: Farm) -> None:
    run = _started(orch)
    with farm.only(2):
        until(lambda: orch.recorded(run) != "RUNNING", awaited="the verdict", deadline_s=40)
    assert _record(orch, run)["state"] == "FAILED"
    assert "n2 refuses connections" in _record(orch, run)["message"]


def test_node_that_answers_with_an_error_is_asked_again(orch: Orch) -> None:
    run = _started(orch)
    mark = orch.node_folder(run, "n1") / "supervised"
    mark.unlink()
    mark.mkdir()
    until(lambda: "n1: " in _notes(orch, run), awaited="the error", deadline_s=30)
    mark.rmdir()
    until(lambda: "n1 answers again" in _notes(orch, run), awaited="the node to answer", deadline_s=30)
    orch("stop", run)


def test_node_that_refuses_the_login_is_not_asked_again(orch: Orch, farm: Farm) -> None:
    run = _started(orch)
    with farm.restart_with_new_host_key():
        farm.drop_connections()
        until(lambda: orch.supervisor(run) is None, awaited="the supervisor to give up", deadline_s=30)
        assert _notes(orch, run).count("goes on without supervision") == 3
    assert _record(orch, run)["state"] == "RUNNING"
    assert f"nobody supervises this run, and it goes on; `orch attach {run}`" in orch("status", run).stderr
    orch("stop", run)


def test_supervisor_whose_record_cannot_be_written_ends_and_says_why(orch: Orch, farm: Farm) -> None:
    run = _started(orch)
    pid = orch.supervisor(run)
    notes = orch.home / "runs" / run / "events.jsonl"
    notes.unlink()
    notes.mkdir()
    farm.drop_connections()
    until(lambda: orch.supervisor(run) != pid, awaited="the supervisor to end", deadline_s=30)
    log = orch.home / "runs" / run / "supervisor.log"
    until(lambda: "the threads that poll" in log.read_text("utf-8"), awaited="the reason in its log")
    assert "IsADirectoryError" in log.read_text("utf-8")
    assert "nobody supervises this run" in orch("status", run).stderr
    orch("stop", run)


@pytest.mark.parametrize("before", ["answered before", "never answered"])
def test_only_a_reply_of_a_witness_is_a_vote_and_the_same_word_is_noted_once(
    farm: Farm, tmp_path: Path, before: str
) -> None:
    """Of n2 the others know no more than a name of ours, which they cannot resolve, as long as it has never answered."""
    config = tmp_path / "ssh_config"
    way = farm.ssh_config.read_text("utf-8")
    config.write_text(way)
    farm.inventory(tmp_path, nodes=3, aliases=True, ssh={"config": str(config), "connect_timeout_s": 2})
    orch = Orch(tmp_path)
    run = _started(orch)
    if before == "never answered":
        orch.kill_supervisor(run)
    config.write_text(f"Host n2\n  ProxyCommand sleep 1000\n{way}")
    farm.drop_connections()
    if before == "never answered":
        orch("attach", "--detach", run)
    vote = "but others reach it" if before == "answered before" else "and no other node can tell"
    until(lambda: f"n2 does not answer this machine, {vote}" in _notes(orch, run), awaited=vote, deadline_s=40)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 11, awaited="two more questions", deadline_s=30)
    assert _notes(orch, run).count("does not answer this machine") == 1
    assert _record(orch, run)["state"] == "RUNNING"
    config.write_text(way)
    until(lambda: "n2 answers again" in _notes(orch, run), awaited="the node to answer", deadline_s=40)
    orch("stop", run)
