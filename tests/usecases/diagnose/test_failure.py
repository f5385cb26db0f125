"""The diagnosis at the end of a run never hides its outcome."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.endpoint.logs import BatchLog
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.base import AttemptFolder
from orchestrator.plan.make import make_plan
from orchestrator.records.run_folder import RunFolder, UnrecordedRun
from orchestrator.run import Failure, Program, RankExit, Request, RunRecord, RunState
from orchestrator.usecases.diagnose.failure import diagnose_failure

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.launchers.base import Launcher


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnrecordedRun:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))  # without signatures of the user
    return failed_run("n0")


def failed_run(*nodes: str) -> UnrecordedRun:
    request = Request("ssh", Program("executable", ("true",)))
    inventory = Inventory(name="t", nodes=tuple(Node(name=name) for name in nodes))
    run = UnrecordedRun.of(make_plan(inventory, request, run_id="t-20260102-030405-0abc", bundle="b"))
    failure = Failure(FailureClass.CODE, Retry.NEVER)
    run.change(lambda record: replace(record, state=RunState.FAILED, failure=failure))
    return run


def test_an_error_of_the_diagnosis_is_a_warning(run: UnrecordedRun) -> None:
    warnings: list[str] = []
    broken = cast("Launcher", SimpleNamespace(attempt=lambda: 1 / 0, attempt_folders=None))
    assert diagnose_failure(run, broken, warnings.append) == run.record
    assert warnings == ["the failure could not be diagnosed: division by zero"]


def test_an_interrupt_ends_the_diagnosis(run: UnrecordedRun) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    interrupted = cast("UnrecordedRun", SimpleNamespace(read=run.read, read_plan=interrupt))
    with pytest.raises(KeyboardInterrupt):
        diagnose_failure(interrupted, cast("Launcher", None), pytest.fail)


def hit_body(name: str, signature: str, text: str) -> dict[str, object]:
    hit = {"id": signature, "line": 1, "text": text, "head": ""}
    log = {"node": "n0", "name": name, "skipped": 0, "bytes": len(text), "lines": 1, "progress_line": 0}
    return {**log, "hits": [hit], "counts": {signature: 1}}


def launcher_of(
    run: UnrecordedRun, logs: Mapping[int, Sequence[object]], batch_log: Callable[[int], object] = lambda _size: None
) -> Launcher:
    """A launcher whose node finds these logs, by attempt; the newest attempt is the last one."""

    def folders(attempt: int, **_: object) -> Sequence[AttemptFolder]:
        endpoint = SimpleNamespace(search=lambda *_, **__: {"logs": logs[attempt], "remarks": [], "is_partial": False})
        return [AttemptFolder(lambda: cast("Endpoint", endpoint), "", ("n0",))]

    plan = SimpleNamespace(attempt=lambda: max(logs), attempt_folders=folders, batch_log=batch_log, plan=run.plan)
    return cast("Launcher", plan)


MISSING = hit_body("rank-0.err", "python-error", "KeyError: 'input_ids'")
KERNEL = {**hit_body("kernel log", "python-error", ""), "hits": [], "counts": {}}


def test_a_restart_that_could_not_be_started_is_not_the_cause(run: UnrecordedRun) -> None:
    exit_ = RankExit("n0", 0, 1, None)
    refused = f"{exit_}; attempt 2 could not be started: n1: OSError: [Errno 28] No space left on device: '/data/a'"
    run.change(lambda record: replace(record, attempt=2, exit=exit_, message=refused))
    record = diagnose_failure(run, launcher_of(run, {1: [MISSING], 2: [KERNEL]}), pytest.fail)
    assert record is not None
    assert record.failure is not None
    assert (record.failure.signature, record.failure.is_diagnosed) == ("python-error", True)


REQUEUED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T16:39:42 DUE TO JOB REQUEUE ***\n"


@pytest.mark.parametrize(
    ("log", "signature"),
    [(REQUEUED + "orch: attempt-2 begins\n", "python-error"), (REQUEUED, "slurm-requeued")],
)
def test_requeue_that_ended_an_earlier_attempt_is_not_the_cause(run: UnrecordedRun, log: str, signature: str) -> None:
    logs = [MISSING] if "attempt-2" in log else [KERNEL]
    launcher = launcher_of(run, {1: [KERNEL], 2: logs}, lambda _size: BatchLog(log, 1.0))
    record = diagnose_failure(run, launcher, pytest.fail)
    assert record is not None
    assert record.failure is not None
    assert record.failure.signature == signature


@pytest.mark.usefixtures("run")
def test_the_rank_that_the_others_waited_for_is_named_with_its_node() -> None:
    text = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation to complete"
    silent = {**hit_body("rank-1.err", "gloo-timeout", ""), "node": "n1", "hits": [], "counts": {}}
    run = failed_run("n0", "n1")
    run.change(lambda record: replace(record, exit=RankExit("n0", 0, 1, None)))
    record = diagnose_failure(
        run, launcher_of(run, {1: [hit_body("rank-0.err", "gloo-timeout", text), silent]}), pytest.fail
    )
    assert record is not None
    assert record.failure is not None
    assert (record.failure.ranks, record.failure.nodes) == ((1,), ("n1",))


def test_last_lines_of_the_first_rank_are_shown_if_no_signature_knows_them(run: UnrecordedRun) -> None:
    """As by sys.exit(TEXT), which leaves no other mark."""
    exit_ = RankExit("n0", 1, 1, None, lines=("read a.yaml", "", "the setting lr is missing"))
    run.change(lambda record: replace(record, exit=exit_))
    record = diagnose_failure(run, launcher_of(run, {1: [KERNEL]}), pytest.fail)
    assert record is not None
    assert record.failure is not None
    assert record.failure.cause is None
    last = "last lines: [rank 1 on n0]"
    assert record.failure.proof[:2] == (f"{last} read a.yaml", f"{last} the setting lr is missing")


def test_a_diagnosis_that_cannot_be_recorded_is_returned(run: UnrecordedRun) -> None:
    def refuse(_change: object) -> RunRecord:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    full = cast("UnrecordedRun", SimpleNamespace(read=run.read, read_plan=run.read_plan, change=refuse))
    record = diagnose_failure(full, launcher_of(run, {1: [MISSING]}), pytest.fail)
    assert record is not None
    assert record.failure is not None
    assert record.failure.signature == "python-error"
    assert run.record.failure != record.failure


def test_a_run_whose_record_is_gone_has_no_diagnosis(tmp_path: Path) -> None:
    assert diagnose_failure(RunFolder(tmp_path), cast("Launcher", None), pytest.fail) is None


def test_a_batch_log_is_waited_for_no_longer_than_the_nodes(
    run: UnrecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.usecases.diagnose.failure.WAIT_S", 2.0)
    is_over = threading.Event()
    try:
        record = diagnose_failure(
            run, launcher_of(run, {1: [MISSING]}, lambda _size: is_over.wait(60) and None), pytest.fail
        )
        assert not is_over.is_set()
    finally:
        is_over.set()
    assert record is not None
    assert record.failure is not None
    assert record.failure.signature == "python-error"


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.DONE])
def test_other_runs_are_not_diagnosed(run: UnrecordedRun, state: RunState) -> None:
    run.change(lambda record: replace(record, state=state, failure=None))
    assert diagnose_failure(run, cast("Launcher", None), pytest.fail) == run.record
