"""Measure the communication between ranks: a run of the trainer's benchmark (trainer/comm), and its results."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.endpoint.access import Terminal
from orchestrator.errors import NodesError, UsageError
from orchestrator.launch.planned import Planned
from orchestrator.portable.checks.full import check_results
from orchestrator.portable.findings import Finding
from orchestrator.progress import OnProgress, no_progress
from orchestrator.run import LauncherName
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.reports.copy import copy

MODULE = "trainer.comm"
RESULTS_FILE = "comm.json"  # in the run's folder on the node of rank 0
NAME = "bench-comm"
DEVICES = "devices=true"
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def arguments(
    inventory: str | None,
    nodes: str | None,
    shape: str | None,
    settings: Sequence[str],
    *,
    launcher: LauncherName = "ssh",
) -> LaunchArguments:
    """The arguments of a launch of the benchmark; `settings` are its KEY=VALUE words."""
    words = tuple(settings)
    return LaunchArguments(
        launcher, inventory, nodes, shape, config=None, settings=words, program=None, name=NAME, module=MODULE
    )


def plan_benchmark(
    launch: LaunchArguments, on_progress: OnProgress = no_progress, terminal: Terminal | None = None
) -> Planned:
    """Plan a run of the benchmark, without a start; UsageError for one rank whose device is not tested, or as plan_launch."""
    planned = plan_launch(launch, on_progress, terminal)
    if planned.plan.world_size <= 1 and DEVICES not in launch.settings:  # one communicates with the other
        planned.close()
        raise UsageError("there is only one rank, which has no other to communicate with", hint="-j 2x1, or more nodes")
    return planned


def read_results(run: str) -> dict[str, Any]:
    """Copy the results from the node of rank 0, also those before a failure; OrchError if there are none, or it is not reached."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / RESULTS_FILE
        try:
            copy(run, RESULTS_FILE, path.parent, None, on_progress=no_progress)
        except NodesError:  # another node does not answer
            if not path.exists():
                raise
        results: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return results


def findings(results: dict[str, Any]) -> list[Finding]:
    """The slow or failed devices, nodes and links, as far as they were measured."""
    return check_results(results)


def size_text(count: int) -> str:
    """The size with a unit; empty if nothing was measured."""
    if not count:
        return ""
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if count % unit == 0), (1, ""))
    return f"{count // unit}{letter}"


def check_plot(path: Path) -> None:
    """UsageError, before anything is measured, if matplotlib or the folder of the plot is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        hint = "install the extra: pip install 'orch-launch[trainer]', or use --json"
        raise UsageError("--png: matplotlib is not installed for the Python of orch", hint=hint)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--png {path}: there is no folder {path.absolute().parent}", hint="create it first")
