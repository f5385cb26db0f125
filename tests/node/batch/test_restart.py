"""The decision to restart a Slurm job, from the files of the attempts; and requeueing the job."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.batch import requeue, restart
from orchestrator.node.batch.history import Attempt
from orchestrator.node.number_text import node_names
from orchestrator.node.run.job import Job
from orchestrator.node.run.retry import attempts_without_progress, choose_nodes, retry_may_help

LEFT: dict[str, Any] = {"event": "rank-exited", "rank": 0, "code": 99, "done": False}
FAILED: dict[str, Any] = {"event": "agent-finished", "state": "FAILED", "exit": {"code": 1, "time": 5.0}}
REQUEUE: dict[str, Any] = {"event": "agent-finished", "state": "REQUEUE", "exit": None}
DONE: dict[str, Any] = {"event": "agent-finished", "state": "DONE", "exit": None}


def _attempt(run: Path, number: int, *nodes: list[dict[str, Any]], progress: dict[str, Any] | None = None) -> Path:
    """An attempt whose agents wrote these events, one per second unless they have a time."""
    folder = run / f"attempt-{number}"
    for rank, events in enumerate(nodes):
        (folder / f"n{rank}" / "progress").mkdir(parents=True)
        lines = [json.dumps({"time": float(second), **event}) for second, event in enumerate(events)]
        (folder / f"n{rank}" / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if progress is not None:
            (folder / f"n{rank}" / "progress" / f"{rank}.json").write_text(json.dumps(progress))
    return folder


def _read(run: Path, number: int, *nodes: list[dict[str, Any]], progress: dict[str, Any] | None = None) -> Attempt:
    return Attempt(str(_attempt(run, number, *nodes, progress=progress)))


def _job(attempt: int, **slurm: object) -> Job:
    options = {"requeue": "auto", "max_retries": 100, "warn_s": 90, **slurm}
    common: dict[str, Any] = {
        "node": "n0",
        "node_rank": 0,
        "run_id": "x",
        "run_dir": "/",
        "bundle_dir": "/",
        "nodes": None,
    }
    return Job(**common, attempt=attempt, addresses=[], ranks=[1], program={}, grace_s=10.0, slurm=options)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([[LEFT, REQUEUE], [LEFT, REQUEUE]], True),
        ([[LEFT, REQUEUE], [{**LEFT, "code": 1}, FAILED]], True),  # a consequence of the other's exit
        ([[{**LEFT, "time": 9.0}, REQUEUE], [{**LEFT, "code": 1}, FAILED]], False),
        ([[LEFT, REQUEUE], [{**LEFT, "code": 93, "time": 8.0}, FAILED]], False),
        ([[{**LEFT, "code": 1}, FAILED]], False),
        ([[{"event": "note"}]], False),
    ],
)
def test_restart_is_requested_if_a_rank_exits_with_99_before_any_failure(
    tmp_path: Path, nodes: list[list[dict[str, Any]]], *, expected: bool
) -> None:
    assert _read(tmp_path, 1, *nodes).restart_requested is expected


@pytest.mark.parametrize(
    ("exit_", "stderr", "expected"),
    [
        ({"code": 1, "kind": "memory"}, "", True),
        ({"code": 1, "error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}, "", True),
        (
            {"code": None, "signal": "SIGABRT"},
            "terminate called after throwing an instance of 'std::bad_alloc'\n",
            True,
        ),
        ({"code": 1, "error": "ValueError: 3"}, "out of memory, so a smaller cache is used\n" + "step\n" * 30, False),
        ({"code": 1, "time": 9.0, "kind": "memory"}, "", False),  # after the request of another rank
    ],
)
def test_job_whose_memory_was_exhausted_is_not_restarted_unchanged(
    tmp_path: Path, exit_: dict[str, Any], stderr: str, *, expected: bool
) -> None:
    failed = {**FAILED, "exit": {"rank": 0, "time": 1.0, **exit_}}
    folder = _attempt(tmp_path, 1, [failed], [{**LEFT, "time": 5.0}, REQUEUE], progress={"saved": 3})
    (folder / "n0" / "rank-0.err").write_text(stderr)
    attempt = Attempt(str(folder))
    assert attempt.no_retry is expected
    assert retry_may_help([attempt]) is not expected


def test_only_all_nodes_done_is_done(tmp_path: Path) -> None:
    assert _read(tmp_path, 1, [DONE], [DONE]).is_done(2)
    assert not _read(tmp_path, 2, [DONE], [LEFT, REQUEUE]).is_done(2)
    assert not _read(tmp_path, 3, [DONE], []).is_done(2)
    assert not _read(tmp_path, 4, [DONE, {"event": "agent-started"}]).is_done(1)


@pytest.mark.parametrize(("group", "code"), [([0, 1], 93), ([0, 2], 93), (None, 0)])
def test_job_whose_nodes_have_trained_separately_fails_although_all_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], group: list[int] | None, code: int
) -> None:
    """They may end before an agent has noticed it, and a job that waits for the success of this one must not start."""
    folder = _attempt(tmp_path, 1, [DONE], [DONE], progress={"step": 1, "time": 1.0, "group": group})
    job = _job(1)
    job.ranks, job.program = [1, 1], {"python": True, "args": ["train.py"]}
    assert restart.done_code(job, str(folder)) == code
    assert ("orch: 2 trainings, not one: " in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [([0], 1), ([0, 5], 0), ([5, 5, 5], 2), ([5, 7, 6, 7, 7], 3), ([5, 7, 6, 7, 8], 0)],
)
def test_progress_is_a_step_that_no_attempt_had_saved_before(tmp_path: Path, saved: list[int], expected: int) -> None:
    """Steps that were trained but not saved do not count."""
    progress = [{"step": 1000 + number, "saved": step} for number, step in enumerate(saved)]
    attempts = [_read(tmp_path, number, [], progress=content) for number, content in enumerate(progress, start=1)]
    assert attempts_without_progress(attempts) == expected


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ([(15, None), (15, None), (15, None), (15, None)], 3),
        ([(15, None), (20, None), (18, None), (21, None)], 0),
        ([(15, 10), (12, None), (15, 10), (19, 10)], 3),
        ([(15, None), (12, 10), (25, 20)], 0),
        ([(None, None)] * 3, 3),
    ],
)
def test_progress_of_a_requested_restart_is_a_newer_step_until_one_is_saved(
    tmp_path: Path, progress: list[tuple[int | None, int | None]], expected: int
) -> None:
    attempts = [
        _read(tmp_path, number, [], progress={"step": step, "saved": saved})
        for number, (step, saved) in enumerate(progress, start=1)
    ]
    assert attempts_without_progress(attempts, at_any_step=True) == expected


def test_program_that_reports_no_progress_makes_some_if_it_runs_until_it_is_warned(tmp_path: Path) -> None:
    at_once = [LEFT, REQUEUE]
    warned: list[dict[str, Any]] = [{"event": "warned"}, *at_once]
    assert attempts_without_progress([_read(tmp_path, number, warned) for number in range(1, 9)]) == 0
    assert attempts_without_progress([_read(tmp_path, number, at_once) for number in range(11, 14)]) == 3


@pytest.mark.parametrize(
    ("saved", "options", "at_limit", "part"),
    [
        ([1, 2, 3], {}, False, ""),
        (
            [5, 5, 5, 5],
            {},
            False,
            "3 attempts in a row made no progress, so the run is not restarted: the newest saved step is 5",
        ),
        ([5, 5, 5], {}, False, ""),
        ([1, 2, 3], {"max_retries": 2}, False, "attempt 3 was the last: max_retries is 2"),
        ([1, 2, 3], {"max_retries": 3}, False, ""),
        ([0], {"max_retries": 0}, False, "attempt 1 was the last"),
        ([1], {"requeue": "never"}, False, "slurm.requeue is never"),
        ([1, 2], {}, True, ""),
        ([2, 2], {}, True, "the time limit came before progress was saved"),
    ],
)
def test_reasons_against_another_attempt(
    tmp_path: Path, saved: list[int], options: dict[str, Any], *, at_limit: bool, part: str
) -> None:
    attempts = [_read(tmp_path, number, [], progress={"saved": step}) for number, step in enumerate(saved, start=1)]
    found = restart.reason_against_requeue(_job(len(saved), **options), attempts, at_limit=at_limit)
    assert (part in found) if part else not found


def test_job_that_slurm_ends_was_at_its_limit_only_if_the_warning_was_due(tmp_path: Path) -> None:
    now = time.time()
    assert _read(tmp_path, 1, [{"event": "warned", "time": now - 91}]).reached_time_limit(90, "n0")
    assert not _read(tmp_path, 2, [{"event": "warned", "time": now - 60}]).reached_time_limit(90, "n0")
    assert not _read(tmp_path, 3, [{"event": "note"}]).reached_time_limit(90, "n0")


def test_time_limit_is_judged_by_the_clock_of_the_batch_host(tmp_path: Path) -> None:
    now = time.time()
    due, early = {"event": "warned", "time": now - 91}, {"event": "warned", "time": now - 10}
    assert _read(tmp_path, 1, [due], [{**due, "time": now + 3600}]).reached_time_limit(90, "n0")
    assert not _read(tmp_path, 2, [early], [{**early, "time": now - 3600}]).reached_time_limit(90, "n0")
    assert _read(tmp_path, 3, [due], [due]).reached_time_limit(90, "spare")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}, "17_2"),
    ],
)
def test_array_requeues_its_own_task_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str
) -> None:
    script = f"#!{sys.executable}\nimport pathlib, sys\npathlib.Path({str(tmp_path / 'said')!r}).write_text(' '.join(sys.argv[1:]))\n"
    (tmp_path / "scontrol").write_text(script)
    (tmp_path / "scontrol").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requeue.requeue(env) == ""
    assert (tmp_path / "said").read_text() == f"requeue {expected}"


def test_refusal_of_scontrol_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Requested operation is presently disabled' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requeue, "PAUSES_S", (0.0, 0.0))
    refusal = requeue.requeue({"SLURM_JOB_ID": "17"})
    assert refusal == "Slurm did not requeue job 17: Requested operation is presently disabled"


STARTED: dict[str, Any] = {"event": "agent-started"}
STOPPING: dict[str, Any] = {"event": "stopping"}
STOPPED: dict[str, Any] = {"event": "agent-finished", "state": "STOPPED", "exit": None}


def _failed(at_s: float) -> dict[str, Any]:
    return {"event": "agent-finished", "state": "FAILED", "exit": {"code": 7, "time": at_s}}


@pytest.mark.parametrize(
    ("nodes", "first_failed_node", "lost"),
    [
        ([[STARTED, _failed(9.0)], [STARTED, _failed(5.0)], [STARTED, STOPPED]], "n1", set()),
        ([[STARTED, _failed(9.0)], [STARTED]], None, {"n1"}),  # failed because its peer was lost
        ([[STARTED], [STARTED]], None, set()),  # all were killed: no node is the cause
        ([[STARTED, _failed(9.0)], [STARTED, STOPPING]], "n0", set()),  # Slurm killed an agent that was stopping
        ([[STARTED, LEFT, REQUEUE], [STARTED, _failed(9.0)]], None, set()),
        ([[STARTED, DONE, STARTED], [STARTED, DONE]], None, {"n0"}),
        ([[STARTED, STOPPING, STOPPED, STARTED], [STARTED, DONE]], None, {"n0"}),  # the first stop was for another port
    ],
)
def test_lost_node_or_first_failed_node_is_found(
    tmp_path: Path, nodes: list[list[dict[str, Any]]], first_failed_node: str | None, lost: set[str]
) -> None:
    attempt = _read(tmp_path, 1, *nodes)
    assert (attempt.first_failed_node, attempt.lost) == (first_failed_node, lost)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([STARTED, {**STOPPING, "time": 4.0}, STOPPED], True),
        ([STARTED, {**STOPPING, "time": 4.0}, _failed(5.0)], True),
        ([STARTED, {**STOPPING, "time": 5.1}, _failed(5.0)], False),
        ([STARTED, {**LEFT, "time": 4.0}, {**STOPPING, "time": 4.1}, REQUEUE], False),
        ([STARTED, _failed(5.0)], False),
    ],
)
def test_attempt_is_stopped_first_if_the_stop_precedes_failures_and_restart_requests(
    tmp_path: Path, events: list[dict[str, Any]], *, expected: bool
) -> None:
    assert _read(tmp_path, 1, events).stopped_first is expected


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n0", ["n0"]),
        ("n[0-1],m", ["n0", "n1", "m"]),
        ("n[08-11,7],x-[1]-y", ["n08", "n09", "n10", "n11", "n7", "x-1-y"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
    ],
)
def test_allocation_is_read_as_slurm_writes_it(nodelist: str, names: list[str]) -> None:
    assert node_names(nodelist) == names


def _attempts(run: Path, *attempts: tuple[int, dict[str, list[dict[str, Any]]]]) -> list[Attempt]:
    """Attempts, each by the number of requeues before it and the events of the nodes' agents."""
    found = []
    for number, (requeues, nodes) in enumerate(attempts, start=1):
        folder = run / f"attempt-{number}"
        for name, events in nodes.items():
            (folder / name).mkdir(parents=True)
            lines = [json.dumps({"time": float(second), **event}) for second, event in enumerate(events)]
            (folder / name / "events.jsonl").write_text("\n".join([*lines, ""]))
        (folder / "job.json").write_text(json.dumps({"slurm": {"requeues": requeues}}))
        found.append(Attempt(str(folder)))
    return found


FINE, FAILS, LOST = [STARTED, STOPPED], [STARTED, _failed(5.0)], [STARTED]


@pytest.mark.parametrize(
    ("attempts", "chosen"),
    [
        ([], ["a", "b"]),
        ([(0, {"a": FAILS, "b": FINE})], ["b", "s"]),
        (
            [(0, {"a": FAILS, "b": FINE}), (0, {"b": FAILS, "s": FINE})],
            ["a", "s"],
        ),  # one failure each: the first in order
        ([(0, {"a": FINE, "b": LOST})], ["a", "s"]),
        ([(0, {"a": FINE, "b": LOST}), (0, {"a": FAILS, "s": FINE})], ["a", "s"]),  # no other node is left
        ([(0, {"a": FINE, "b": LOST}), (0, {"a": LOST, "s": FINE})], ["s"]),
        (
            [(0, {"a": FINE, "b": LOST}), (1, {"a": FAILS, "b": FINE})],
            ["b", "s"],
        ),  # a lost node is usable in the next allocation
    ],
)
def test_nodes_of_the_next_attempt_are_those_that_did_not_fail(
    tmp_path: Path, attempts: list[tuple[int, dict[str, list[dict[str, Any]]]]], chosen: list[str]
) -> None:
    assert choose_nodes(["a", "b", "s"], 2, _attempts(tmp_path, *attempts), ["s"]) == chosen


KILLED: dict[str, Any] = {"event": "agent-finished", "state": "FAILED", "exit": None}
TRAINS: dict[str, Any] = {"event": "rank-started", "rank": 0}


@pytest.mark.parametrize(
    ("nodes", "saved", "expected"),
    [
        ([FINE, FAILS], 0, False),
        ([FINE, FAILS], 5, True),
        ([FINE, [STARTED, {**LEFT, "code": 93}, _failed(5.0)]], 5, False),
        ([FINE, LOST], 0, True),
        ([FINE, [STARTED, TRAINS, KILLED]], 0, True),
        ([FINE, [STARTED, KILLED]], 0, False),  # refused: there is no such program
    ],
)
def test_failed_run_is_restarted_if_a_retry_may_help(
    tmp_path: Path, nodes: list[list[dict[str, Any]]], saved: int, *, expected: bool
) -> None:
    assert retry_may_help([_read(tmp_path, 1, *nodes, progress={"saved": saved})]) is expected


@pytest.mark.parametrize(("step", "at_any_step", "expected"), [(1, True, True), (1, False, False), (None, True, False)])
def test_requested_restart_needs_a_step_and_no_save(
    tmp_path: Path, step: int | None, *, at_any_step: bool, expected: bool
) -> None:
    attempt = _read(tmp_path, 1, FINE, FAILS, progress={"step": step, "saved": None})
    assert retry_may_help([attempt], at_any_step=at_any_step) is expected
