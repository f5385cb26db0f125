"""Nodes that share one folder, on a machine that cannot be reached: errors count folders, not nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.cli.app import run
from orchestrator.errors import NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder, UnrecordedRun
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.reports import logs
from orchestrator.verdict.observe import observe_run

FAILURE = Unreachable("login0", "no route to host")


class SharedFolder(DirectLauncher):
    """A launcher with one folder for all nodes, which cannot be read."""

    def attempt_folders(
        self,
        attempt: int,  # always the same
        nodes: Collection[str] | None = None,
        *,
        connect: bool = True,
    ) -> Sequence[AttemptFolder]:
        def reach() -> NoReturn:
            raise FAILURE

        return [AttemptFolder(reach, "/w/attempt-1", None, FAILURE)]


@pytest.fixture
def plan() -> LaunchPlan:
    """A plan of 16 nodes."""
    inventory = Inventory(name="demo", nodes=tuple(Node(name=f"n{number}") for number in range(16)))
    request = Request("slurm", Program("trainer", ()))
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b")


@pytest.fixture
def launcher(plan: LaunchPlan) -> DirectLauncher:
    return SharedFolder(plan, lambda node: LocalTransport(node.name))


def test_observation_counts_folders(plan: LaunchPlan, launcher: DirectLauncher, tmp_path: Path) -> None:
    with pytest.raises(NodesError) as caught:
        observe_run(RunFolder(tmp_path), plan, launcher, None)
    assert str(caught.value) == "login0: no route to host"


def test_logs_count_folders(
    plan: LaunchPlan, launcher: DirectLauncher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(
        plan.run_id, "slurm", RunState.RUNNING, "", request={}, inventory={}, code={}, versions={}, started=True
    )
    monkeypatch.setattr(logs, "recorded_run", lambda *_: (UnrecordedRun(record, plan), launcher))
    assert run(["logs", plan.run_id]) == 4
    assert capsys.readouterr().err == "orch: error: login0: no route to host\n"
