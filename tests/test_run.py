"""Run ids, the states of a run, and its record as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from orchestrator.node.run.events import NO_RETRY
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.run import RankExit, RunRecord, RunState, new_run_id


def _record(run_id: str) -> RunRecord:
    return RunRecord(run_id, "ssh", RunState.PENDING, "2026-01-02T03:04:05+00:00", {}, {}, {}, {})


def test_run_id_is_name_time_and_token() -> None:
    run_id = new_run_id("h800", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc), "0abc")
    assert run_id == "h800-20260102-030405-0abc"
    assert RUN_ID.fullmatch(run_id)


@pytest.mark.parametrize(
    ("state", "code"),
    [("PENDING", 0), ("STARTING", 0), ("RUNNING", 0), ("DONE", 0), ("FAILED", 1), ("LOST", 5), ("STOPPED", 6)],
)
def test_exit_code_follows_from_the_state(state: str, code: int) -> None:
    assert replace(_record("a-20260102-030405-0abc"), state=RunState(state)).exit_code == code


def test_lost_run_is_final_but_not_known_to_have_ended() -> None:
    assert {state for state in RunState if state.final and not state.ended} == {RunState.LOST}
    assert {state for state in RunState if state.ended} == {RunState.DONE, RunState.FAILED, RunState.STOPPED}


def test_rank_that_forbids_a_retry_gives_the_run_its_code() -> None:
    failed = replace(_record("a-20260102-030405-0abc"), state=RunState.FAILED)
    assert replace(failed, exit=RankExit("n0", 3, NO_RETRY, None)).exit_code == NO_RETRY
    assert replace(failed, exit=RankExit("n0", 3, 7, None)).exit_code == 1


def test_record_reads_back_equal() -> None:
    record = replace(_record("a-20260102-030405-0abc"), exit=RankExit("n0", 3, None, "SIGKILL", "out of memory"))
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_state_of_another_version_is_lost() -> None:
    record = RunRecord.from_json({**_record("a-20260102-030405-0abc").to_json(), "state": "PAUSED"})
    assert (record.state, record.message) == (
        RunState.LOST,
        "its state is PAUSED, which this version of orch does not know",
    )
