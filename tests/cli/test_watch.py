"""The end of a watched run: its outcome, then the cause of a failure, which never changes the exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.cli import watch
from orchestrator.cli.watch import WatchedRun, show
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.logs.lines import LogLines
from orchestrator.run import Failure, RunRecord, RunState
from orchestrator.usecases.launch_arguments import WatchedLines
from orchestrator.usecases.reports.log_reader import Viewer

FAILED = RunRecord("t-1", "ssh", RunState.FAILED, "", {}, {}, {}, {}, message="rank 3 on n1 exited 93")
DISK = Failure(
    FailureClass.STORAGE,
    Retry.NEVER,
    is_diagnosed=True,
    cause="a disk is full",
    nodes=("n1",),
    ranks=(3,),
    confidence="high",
    proof=("n1/rank-3.err:7: [rank 3 on n1] No space\x1b[2J left on device",),
    remedy=("df -h", "quota -s"),
)
OUTCOME = "orch: run t-1 is FAILED: rank 3 on n1 exited 93\n"


class Ended(WatchedRun):
    def __init__(self, record: RunRecord, found: RunRecord | BaseException | None, *shown: LogLines) -> None:
        self._record, self._found, self._shown = record, found, shown

    def to_end(self, view: Viewer) -> RunRecord:
        view.write(self._shown)
        return self._record

    def diagnosed(self, _on_warning: Callable[[str], None]) -> RunRecord | None:
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found


def end_of(record: RunRecord, found: RunRecord | BaseException | None) -> int:
    return show("t-1", Ended(record, found), WatchedLines(quiet=True))


def test_equal_lines_are_folded_and_the_last_ones_precede_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [LogLines(1.0, node, rank, "out", "up") for rank, node in enumerate(("n0", "n1"))]
    monkeypatch.setattr(watch, "_ranks_of", {"t-1": lambda _node: 1}.__getitem__)
    show("t-1", Ended(replace(FAILED, state=RunState.DONE), None, *lines), WatchedLines(quiet=True, fold=True))
    assert capsys.readouterr().out == "[n[0-1]:*] up\n"


def test_the_cause_follows_the_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(FAILED, replace(FAILED, failure=DISK)) == 1
    assert capsys.readouterr().err == (
        f"{OUTCOME}"
        "cause       a disk is full\n"
        "began on    rank 3 on n1\n"
        "proof       n1/rank-3.err:7: [rank 3 on n1] No space\\x1b[2J left on device\n"
        "next        df -h\n"
        "            quota -s\n"
        "retry       no: the run fails the same way until that is corrected\n"
        "more        orch diagnose t-1\n"
    )


def test_an_unknown_cause_is_the_earliest_errors(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = Failure(
        FailureClass.CODE, Retry.NEVER, is_diagnosed=True, nodes=("n0",), proof=("n0/rank-0.err:1: [ERROR] a", "b")
    )
    end_of(FAILED, replace(FAILED, failure=unknown))
    assert capsys.readouterr().err == (
        f"{OUTCOME}cause       unknown: no line names one\nbegan on    n0\nerrors      n0/rank-0.err:1: [ERROR] a\n            b\n"
        "more        orch diagnose t-1\n"
    )


@pytest.mark.parametrize("found", [None, FAILED, KeyboardInterrupt()])
def test_without_a_diagnosis_the_outcome_stands(
    found: RunRecord | BaseException | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(FAILED, found) == 1
    assert capsys.readouterr().err == OUTCOME


def test_other_outcomes_are_not_diagnosed() -> None:
    assert end_of(replace(FAILED, state=RunState.STOPPED), AssertionError("diagnosed")) == 6
