"""A verdict on a run whose record cannot be written, such as on a full disk."""

from __future__ import annotations

from pathlib import Path

from orchestrator.records.store import Store
from orchestrator.run import RunRecord, RunState
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.record_outcome import record_outcome_if_writable


def test_state_is_known_and_the_file_named_though_the_record_cannot_be_written(tmp_path: Path) -> None:
    record = RunRecord("r-20260102-030405-0abc", "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True)
    folder = Store(tmp_path / "home").create(record)
    folder.change_lock.unlink()
    folder.change_lock.mkdir()
    settled, warning = record_outcome_if_writable(folder, Verdict(RunState.DONE))
    assert settled.state is RunState.DONE
    assert warning == f"the record of run {record.id} cannot be written: {folder.change_lock}: Is a directory"
    assert folder.read() == record
    folder.change_lock.rmdir()
    settled, warning = record_outcome_if_writable(folder, Verdict(RunState.DONE))
    assert (folder.read(), warning) == (settled, "")
