"""`--dry-run --query`: the plan by what the nodes are now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.access import Destination
from orchestrator.errors import NodesError, Unreachable
from orchestrator.launch import query
from orchestrator.launch.planned import Planned
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import no_progress
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments

pytestmark = pytest.mark.processes


def _planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, elastic: str | None) -> Planned:
    """A launch on n0 and on n1, which is off."""

    def transport(node: Destination) -> LocalTransport:
        if node.name == "n1":
            raise Unreachable(node.name, "no route to host")
        return LocalTransport(node.name)

    def launcher_for(plan: LaunchPlan, *_: object) -> DirectLauncher:
        return DirectLauncher(plan, transport)

    (tmp_path / "inventory.yaml").write_text(
        f"name: here\naccelerator: cpu\ndevices: 1\ntransport: local\n"
        f"defaults: {{workdir: {tmp_path}/work, python: {sys.executable}}}\nnodes: [{{name: 'n[0-1]'}}]\n"
    )
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(query, "launcher_for", launcher_for)
    options: dict[str, Any] = {"elastic": elastic, "max_retries": 1} if elastic else {}
    arguments = LaunchArguments("ssh", "inventory.yaml", None, None, None, (), ("true",), **options)
    return plan_launch(arguments)


def test_elastic_launch_is_shown_on_the_nodes_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    planned = _planned(tmp_path, monkeypatch, elastic="1:2")
    plan = query.queried_plan(planned, warnings.append, no_progress)
    assert [node.name for node in plan.nodes] == ["n0"]
    assert warnings[0] == "n1 cannot be reached: no route to host; the run begins on 1 of 2 nodes (--elastic)"
    assert not (tmp_path / "work/runs").exists()


def test_launch_that_would_fail_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = _planned(tmp_path, monkeypatch, elastic=None)
    with pytest.raises(NodesError, match="n1: no route to host"):
        query.queried_plan(planned, pytest.fail, no_progress)
