"""A run over ssh and its supervisor: whatever dies, the run ends on every node or continues, and the record has its state."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunState
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

SLEEPERS = ("sh", "-c", 'echo "last words of $RANK" >&2; sleep 1000')

DETECTED_S = 10  # enough for a busy machine; without an event of the agent it would be minutes


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of three nodes with two ranks each."""
    farm.inventory(tmp_path, nodes=3, devices=2)
    return Orch(tmp_path)


def _started(orch: Orch, *options: str) -> str:
    """Start a detached run whose ranks all sleep, and wait for its supervisor and ranks."""
    run = orch("ssh-launch", "--detach", *options, "--", *SLEEPERS).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    until(lambda: orch.printed(run).count("last words") == 6, awaited="six ranks")
    return run


def _record(orch: Orch, run: str) -> dict[str, Any]:
    [record] = [entry for entry in orch.records() if entry["id"] == run]
    return record


def _ended(orch: Orch, run: str) -> dict[str, Any]:
    """Wait for the supervisor alone to end the run, without a query from here; returns the final record."""
    until(lambda: orch.recorded(run) not in ("STARTING", "RUNNING"), awaited="the supervisor's verdict")
    return _record(orch, run)


def _rank_pid(orch: Orch, run: str, rank: int) -> int:
    """The pid of that rank; each node has two."""
    return orch.rank_pid(run, f"n{rank // 2}", rank)


def _has_no_process(orch: Orch, run: str) -> bool:
    return not orch.processes_of(run)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.extended)])
def test_killed_rank_ends_all_ranks_and_is_named(orch: Orch, number: signal.Signals) -> None:
    run = _started(orch)
    os.kill(_rank_pid(orch, run, 3), number)
    killed = time.time()
    record = _ended(orch, run)
    [detected] = [
        event["time"] for event in orch.events(orch.node_folder(run, "n1")) if event.get("signal") == number.name
    ]
    assert detected - killed < DETECTED_S
    assert record["state"] == "FAILED"
    assert (record["exit"]["node"], record["exit"]["rank"], record["exit"]["signal"]) == ("n1", 3, number.name)
    assert record["exit"]["lines"] == ["last words of 3"]
    orch("status", run, code=1)
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def test_rank_that_ignores_the_stop_delays_no_heartbeat(orch: Orch) -> None:
    """The agent of n1 kills its rank 10 s after the stop; the connection to n1 must not be taken for lost before that."""
    script = 'if [ "$RANK" = 0 ]; then sleep 1; exit 3; fi; trap "" TERM; while :; do echo words; sleep 0.2; done'
    printed = orch("ssh-launch", "--nodes", "n0,n1", "-j", "2x1", "--", "sh", "-c", script, code=None)
    assert "no answer" not in printed.stdout + printed.stderr
    assert "gap" not in printed.stdout + printed.stderr
    [run] = orch.records()
    assert run["state"] == "FAILED"
    assert (run["exit"]["node"], run["exit"]["rank"]) == ("n0", 0)
    assert "node-failed" not in (orch.home / "runs" / run["id"] / "events.jsonl").read_text("utf-8")


@pytest.mark.parametrize(
    "victims",
    [
        ("guard", "agent"),
        pytest.param(("agent",), marks=pytest.mark.extended),
        pytest.param(("guard",), marks=pytest.mark.extended),
    ],
)
def test_killed_agent_ends_all_ranks_and_is_named(orch: Orch, victims: tuple[str, ...]) -> None:
    """Its own ranks end, whether agent, guard or both are killed."""
    run = _started(orch)
    agent = orch.agent_pid(run, "n2")
    pids = {"agent": agent, "guard": orch.parent_of(agent)}
    orphans = [_rank_pid(orch, run, rank) for rank in (4, 5)]
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):  # an agent without its guard also ends by itself
            os.kill(pids[victim], signal.SIGKILL)
    until(lambda: not set(orphans) & set(orch.processes_of(run)), awaited="the orphans to be gone")
    record = _ended(orch, run)
    assert record["state"] == "FAILED"
    assert "n2" in record["message"]
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def test_agent_that_is_stopped_is_reported_and_one_that_gets_a_foreign_sigterm_fails_the_run(orch: Orch) -> None:
    """As by a person with SIGSTOP; and as a node that shuts down, or an admin, sends SIGTERM."""
    run = _started(orch)
    agent, folder = orch.agent_pid(run, "n1"), orch.home / "runs" / run
    text = (
        f"the agent on n1 is stopped (SIGSTOP): `kill -CONT {agent}` there continues it, `orch stop {run}` ends the run"
    )
    os.kill(agent, signal.SIGSTOP)
    until(
        lambda: [e["text"] for e in orch.events(folder) if e["event"] == "agent-stopped"] == [text], awaited="its event"
    )
    done = orch("status", run)
    assert text in done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("n")] == [
        "running",
        "stopped",
        "running",
    ]
    os.kill(agent, signal.SIGCONT)
    until(lambda: "agent-continued" in {e["event"] for e in orch.events(folder)}, awaited="the other event")
    os.kill(agent, signal.SIGTERM)
    record = _ended(orch, run)
    assert record["state"] == "FAILED"
    assert "n1 was stopped by a signal, not by `orch stop` on this machine" in record["message"]
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")
    orch("stop", run)
    assert orch.status(run)["state"] == "FAILED"


def test_run_without_a_watcher_ends_as_done(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", "sleep 0.5; echo done").stdout.strip()
    assert _ended(orch, run)["state"] == "DONE"
    until(lambda: orch.supervisor(run) is None, awaited="the supervisor to end")


def test_run_continues_without_its_supervisor_and_attach_ends_it_after_a_failure(orch: Orch) -> None:
    run = _started(orch)
    orch.kill_supervisor(run)
    os.kill(_rank_pid(orch, run, 4), signal.SIGKILL)
    until(lambda: any(e["event"] == "agent-finished" for e in orch.events(orch.node_folder(run, "n2"))), awaited="n2")
    assert len(orch.processes_of(run)) > 1
    assert "exclude each other" in orch("attach", "--fold", "--detach", run, code=2).stderr
    done = orch("attach", "--fold", "--tail", "1", run, code=1)
    assert "rank 4 on n2 was killed by SIGKILL" in done.stderr
    assert done.stdout.count("last words") <= 1, "it begins with the last line, not with the first of each node"
    assert _record(orch, run)["exit"]["rank"] == 4
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def _failed_unsupervised(orch: Orch) -> str:
    """Start a run and kill rank 4 on n2 while it has no supervisor; n0 and n1 still run."""
    run = _started(orch)
    orch.kill_supervisor(run)
    os.kill(_rank_pid(orch, run, 4), signal.SIGKILL)
    until(lambda: any(e["event"] == "agent-finished" for e in orch.events(orch.node_folder(run, "n2"))), awaited="n2")
    return run


def _attach_to_its_end(orch: Orch, run: str) -> None:
    record = _record(orch, run)
    assert (record["state"], record["exit"]["rank"], record["ended"]) == ("RUNNING", 4, None)
    assert "rank 4 on n2 was killed by SIGKILL" in orch("attach", run, code=1).stderr
    record = _record(orch, run)
    assert (record["state"], record["exit"]["rank"]) == ("FAILED", 4)
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def test_status_of_a_failed_run_without_a_supervisor_leaves_it_to_attach(orch: Orch) -> None:
    run = _failed_unsupervised(orch)
    done = orch("status", run)
    assert f"RUNNING  run {run} may still run on n[0-1], and nobody supervises it" in done.stdout
    assert "rank 4 on n2 was killed by SIGKILL" in done.stdout
    assert "nobody supervises it" in done.stderr
    assert f"`orch attach {run}` or `orch stop {run}` ends what is left" in done.stderr
    assert "may still run" in orch("list", "--all").stdout
    _attach_to_its_end(orch, run)


@pytest.mark.extended
def test_follower_of_a_failed_run_without_a_supervisor_continues_until_the_run_has_ended(orch: Orch) -> None:
    run = _failed_unsupervised(orch)
    reader = orch.start("logs", "-f", run)
    until(lambda: _record(orch, run)["exit"], awaited="the reader to see the failure")
    assert reader.poll() is None
    _attach_to_its_end(orch, run)
    _, stderr = reader.communicate(timeout=60)
    assert stderr.count(f"`orch attach {run}` or `orch stop {run}` ends what is left") == 1
    assert f"run {run} is FAILED" in stderr


@pytest.mark.extended
def test_status_names_a_supervisor_that_is_stopped_and_it_ends_the_run_when_it_is_continued(orch: Orch) -> None:
    run = _started(orch)
    pid = orch.supervisor(run)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    os.kill(_rank_pid(orch, run, 4), signal.SIGKILL)
    until(lambda: any(e["event"] == "agent-finished" for e in orch.events(orch.node_folder(run, "n2"))), awaited="n2")
    done = orch("status", run)
    assert f"RUNNING  run {run} may still run on n[0-1], and its supervisor, pid {pid} on " in done.stdout
    assert "rank 4 on n2 was killed by SIGKILL" in done.stdout
    assert f"pid {pid} on " in done.stderr
    assert f"`kill -CONT {pid}` or `orch stop {run}` ends what is left" in done.stderr
    assert f"kill -CONT {pid}" in orch("attach", run, code=2).stderr
    os.kill(pid, signal.SIGCONT)
    assert _ended(orch, run)["exit"]["rank"] == 4
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def test_second_supervisor_is_refused(orch: Orch) -> None:
    run = _started(orch)
    pid = orch.supervisor(run)
    assert f"has a supervisor: pid {pid}" in orch("attach", run, code=2).stderr
    orch("stop", run)
    assert _ended(orch, run)["state"] == "STOPPED"


@pytest.mark.extended
def test_two_simultaneous_attaches_start_one_supervisor(orch: Orch) -> None:
    """Both may find no supervisor; the second one is refused."""
    run = _started(orch)
    orch.kill_supervisor(run)
    with orch.start("attach", "--detach", run) as first, orch.start("attach", "--detach", run) as second:
        codes = {process.communicate(timeout=60)[1]: process.returncode for process in (first, second)}
    assert sorted(codes.values()) == [0, 2], codes
    [refusal] = [text for text, code in codes.items() if code]
    assert f"has a supervisor: pid {orch.supervisor(run)} " in refusal
    until(lambda: orch.supervisors() == [orch.supervisor(run)], awaited="the refused one to end")
    assert len(orch.processes_of(run)) > 6
    orch("stop", run)


@pytest.mark.extended
def test_reused_pid_of_a_dead_supervisor_blocks_no_attach(orch: Orch) -> None:
    run = _started(orch)
    orch.kill_supervisor(run)
    (orch.home / "runs" / run / "supervisor.lock").write_text(f"pid {os.getpid()} on here\n")
    orch("attach", "--detach", run)
    assert orch.supervisor(run) not in (None, os.getpid())
    orch("stop", run)


def test_attach_ends_what_is_left_of_a_run_whose_record_is_final(orch: Orch) -> None:
    run = _started(orch)
    orch.kill_supervisor(run)
    RunFolder(orch.home / "runs" / run).update(state=RunState.FAILED)
    warning = f"run {run} may still run on n[0-2], and nobody supervises it: `orch attach {run}`"
    assert warning in orch("status", run, code=1).stderr
    done = orch("attach", run, code=1)
    assert f"run {run} still runs on n[0-2]: it is ended there" in done.stderr
    assert f"run {run} is FAILED" in done.stderr
    assert _has_no_process(orch, run)


def test_ranks_end_by_themselves_after_the_orphan_timeout(orch: Orch) -> None:
    run = _started(orch, "--orphan-timeout", "5s")  # longer than a busy machine takes to start the supervisor
    assert orch.processes_of(run)
    orch.kill_supervisor(run)
    until(lambda: _has_no_process(orch, run), awaited="the ranks to end")
    assert any("--orphan-timeout" in event["text"] for event in orch.events(orch.node_folder(run, "n0")))


@pytest.mark.extended
@pytest.mark.parametrize("order", ["supervisor first", "rank first"])
def test_supervisor_and_rank_killed_in_any_order_leave_nothing_once_attached(orch: Orch, order: str) -> None:
    run = _started(orch)
    supervisor, rank = orch.supervisor(run), _rank_pid(orch, run, 0)
    assert supervisor is not None
    for pid in (supervisor, rank) if order == "supervisor first" else (rank, supervisor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: orch.supervisor(run) is None, awaited="the supervisor to be gone")
    orch("attach", run, code=1)
    until(lambda: _has_no_process(orch, run), awaited="every process of the run to be gone")


def test_invalid_time_span_is_refused(orch: Orch) -> None:
    assert (
        "--orphan-timeout soon: not a time span"
        in orch("ssh-launch", "--orphan-timeout", "soon", "--", "true", code=2).stderr
    )
