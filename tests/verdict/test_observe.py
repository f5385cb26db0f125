"""The command or the supervisor that records the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.store import Store
from orchestrator.run import LauncherName, Program, Request, RunRecord, RunState
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.observe import is_left_to_supervisor

RUN = "demo-20260102-030405-0abc"


@pytest.mark.parametrize("launcher", get_args(LauncherName))
def test_supervisor_of_a_failed_run_records_its_end(tmp_path: Path, launcher: LauncherName) -> None:
    """Also without --max-retries, as it adds the cause and the last lines; under Slurm no process does that."""
    plan = make_plan(
        Inventory(name="demo", nodes=(Node(name="n0"),)),
        Request(launcher, Program("trainer", ())),
        run_id=RUN,
        bundle="b",
    )
    folder = Store(tmp_path / "home").create(
        RunRecord(RUN, launcher, RunState.RUNNING, "", {}, {}, {}, {}, started=True)
    )

    def states_left() -> set[RunState]:
        return {state for state in RunState if is_left_to_supervisor(folder, plan, Verdict(state))}

    assert states_left() == set()
    with folder.supervision():
        assert states_left() == ({RunState.FAILED, RunState.LOST} if launcher == "ssh" else set())
