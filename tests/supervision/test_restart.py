"""The decision to restart a run over SSH, from the last reports of the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.replies import AgentRecord, Finished, NodeObservation, ReportedExit
from orchestrator.run import RankExit, RunState
from orchestrator.store import RunFolder
from orchestrator.supervision.restart import DirectAttempt, Restarts
from orchestrator.verdict.judge import Verdict

AGENT = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0,), 1, "127.0.0.1 1 host", 0.0)


def _failed(**exit_: Any) -> Verdict:  # noqa: ANN401  fields of RankExit
    return Verdict(
        RunState.FAILED, RankExit(**{"node": "n0", "rank": 0, "code": 7, "signal": None, **exit_}), "it failed"
    )


def _node(saved: int | None, code: int | None = 7, *, has_exit: bool = True) -> NodeObservation:
    """A node whose agent has ended, by the exit of a rank or by itself."""
    exit_ = ReportedExit(0, code, None, None)
    finished = Finished("FAILED", 1.0, exit_ if has_exit else None)
    progress = {} if saved is None else {0: {"saved": saved}}
    return NodeObservation(
        "n0",
        AGENT,
        alive=False,
        same_boot=True,
        finished=finished,
        first_failure=exit_ if has_exit else None,
        ranks={0: "exited"},
        progress=progress,
    )


@pytest.mark.parametrize(
    ("verdict", "node", "cut_off", "reason"),
    [
        (_failed(), _node(3), (), ""),
        (_failed(code=99), _node(None, 99), (), ""),
        (_failed(), _node(None), (), "not restarted: nothing was saved, and no node was lost"),
        (_failed(), _node(None), ("n1",), ""),
        (Verdict(RunState.FAILED, message="killed"), _node(None, has_exit=False), (), ""),
        (_failed(code=93), _node(3, 93), (), "not restarted: a rank exited with 93: a retry cannot help"),
        (_failed(kind="memory"), _node(3), (), "not restarted: memory was exhausted, and would be again"),
        (
            _failed(lines=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",)),
            _node(3),
            (),
            "not restarted: memory was exhausted, and would be again",
        ),
    ],
)
def test_run_is_restarted_if_that_may_help(
    tmp_path: Path, verdict: Verdict, node: NodeObservation, cut_off: tuple[str, ...], reason: str
) -> None:
    restarts = Restarts(RunFolder(tmp_path), 3, lambda plan: plan)
    attempt = DirectAttempt.of(verdict, [node], (), cut_off)
    assert restarts.reason_against(verdict, attempt) == reason


def test_run_is_restarted_by_the_process_that_launched_it_alone(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 3, None)
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "not restarted: only the process that launched the run knows its environment, and it has ended"


def test_last_attempt_is_the_one_after_max_retries(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 0, lambda plan: plan)
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "attempt 1 was the last: max_retries is 0; the newest saved step is 3"
