"""Whether a Slurm job begins anew, by what its attempts left in the run folder; and asking Slurm for it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import again, requeue
from orchestrator.node.job import Job

LEFT: dict[str, Any] = {"event": "rank-exited", "rank": 0, "code": 99, "done": False}
FAILED: dict[str, Any] = {"event": "agent-finished", "state": "FAILED", "exit": {"code": 1, "time": 5.0}}
REQUEUE: dict[str, Any] = {"event": "agent-finished", "state": "REQUEUE", "exit": None}
DONE: dict[str, Any] = {"event": "agent-finished", "state": "DONE", "exit": None}


def _attempt(run: Path, number: int, *nodes: list[dict[str, Any]], progress: dict[str, Any] | None = None) -> Path:
    """An attempt whose agents wrote these events, one a second unless they say when."""
    folder = run / f"attempt-{number}"
    for rank, events in enumerate(nodes):
        (folder / f"n{rank}" / "progress").mkdir(parents=True)
        lines = [json.dumps({"time": float(second), **event}) for second, event in enumerate(events)]
        (folder / f"n{rank}" / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if progress is not None:
            (folder / f"n{rank}" / "progress" / f"{rank}.json").write_text(json.dumps(progress))
    return folder


def _ending(
    run: Path, number: int, *nodes: list[dict[str, Any]], progress: dict[str, Any] | None = None
) -> again.Ending:
    return again.Ending(str(_attempt(run, number, *nodes, progress=progress)))


def _job(attempt: int, **slurm: object) -> Job:
    rules = {"requeue": "auto", "max_retries": 100, "warn_s": 90, **slurm}
    common: dict[str, Any] = {
        "node": "n0",
        "node_rank": 0,
        "run_id": "x",
        "run_dir": "/",
        "bundle_dir": "/",
        "nodes": None,
    }
    return Job(**common, attempt=attempt, addresses=[], ranks=[1], program={}, grace_s=10.0, slurm=rules)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([[LEFT, REQUEUE], [LEFT, REQUEUE]], True),
        ([[LEFT, REQUEUE], [{**LEFT, "code": 1}, FAILED]], True),  # failed since the other had left
        ([[{**LEFT, "time": 9.0}, REQUEUE], [{**LEFT, "code": 1}, FAILED]], False),
        ([[LEFT, REQUEUE], [{**LEFT, "code": 93, "time": 8.0}, FAILED]], False),
        ([[{**LEFT, "code": 1}, FAILED]], False),
        ([[{"event": "note"}]], False),
    ],
)
def test_another_attempt_is_wanted_where_a_rank_asked_before_any_failed(
    tmp_path: Path, nodes: list[list[dict[str, Any]]], *, expected: bool
) -> None:
    assert _ending(tmp_path, 1, *nodes).asks_for_more() is expected


def test_only_all_nodes_done_is_done(tmp_path: Path) -> None:
    assert _ending(tmp_path, 1, [DONE], [DONE]).is_done(2)
    assert not _ending(tmp_path, 2, [DONE], [LEFT, REQUEUE]).is_done(2)
    assert not _ending(tmp_path, 3, [DONE], []).is_done(2)
    assert not _ending(tmp_path, 4, [DONE, {"event": "agent-started"}]).is_done(1)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [([0], 1), ([0, 5], 0), ([5, 5, 5], 2), ([5, 7, 6, 7, 7], 3), ([5, 7, 6, 7, 8], 0)],
)
def test_progress_is_a_step_that_no_attempt_had_saved_before(tmp_path: Path, saved: list[int], expected: int) -> None:
    """Steps that were trained and not saved count for nothing."""
    progress = [{"step": 1000 + number, "saved": step} for number, step in enumerate(saved)]
    endings = [_ending(tmp_path, number, [], progress=one) for number, one in enumerate(progress, start=1)]
    assert again.barren(endings) == expected


def test_program_that_says_nothing_of_its_progress_makes_some_when_it_runs_until_it_is_warned(tmp_path: Path) -> None:
    at_once = [LEFT, REQUEUE]
    warned: list[dict[str, Any]] = [{"event": "warned"}, *at_once]
    assert again.barren([_ending(tmp_path, number, warned) for number in range(1, 9)]) == 0
    assert again.barren([_ending(tmp_path, number, at_once) for number in range(11, 14)]) == 3


@pytest.mark.parametrize(
    ("saved", "rules", "at_limit", "part"),
    [
        ([1, 2, 3], {}, False, ""),
        (
            [5, 5, 5, 5],
            {},
            False,
            "3 attempts in a row made no progress, so the job does not begin anew: the newest saved step is 5",
        ),
        ([5, 5, 5], {}, False, ""),
        ([1, 2, 3], {"max_retries": 2}, False, "attempt 3 was the last: slurm.max_retries is 2"),
        ([1, 2, 3], {"max_retries": 3}, False, ""),
        ([0], {"max_retries": 0}, False, "attempt 1 was the last"),
        ([1], {"requeue": "never"}, False, "slurm.requeue is never"),
        ([1, 2], {}, True, ""),
        ([2, 2], {}, True, "the time limit came before progress was saved"),
    ],
)
def test_what_speaks_against_another_attempt(
    tmp_path: Path, saved: list[int], rules: dict[str, Any], *, at_limit: bool, part: str
) -> None:
    endings = [_ending(tmp_path, number, [], progress={"saved": step}) for number, step in enumerate(saved, start=1)]
    found = again.objection(_job(len(saved), **rules), endings, at_limit=at_limit)
    assert (part in found) if part else not found


def test_job_that_slurm_ends_was_at_its_limit_only_after_a_warning_in_due_time(tmp_path: Path) -> None:
    now = time.time()
    assert _ending(tmp_path, 1, [{"event": "warned", "time": now - 91}]).reached_time_limit(90)
    assert not _ending(tmp_path, 2, [{"event": "warned", "time": now - 60}]).reached_time_limit(90)
    assert not _ending(tmp_path, 3, [{"event": "note"}]).reached_time_limit(90)


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


def test_refusal_of_scontrol_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Requested operation is presently disabled' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requeue, "PAUSES_S", (0.0, 0.0))
    refusal = requeue.requeue({"SLURM_JOB_ID": "17"})
    assert refusal == "Slurm did not take job 17 into the queue again: Requested operation is presently disabled"
