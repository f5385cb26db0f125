"""The time to collect the facts of one node."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from orchestrator.endpoint.client import Endpoint
from orchestrator.resources import node_folder
from orchestrator.transports.local import LocalTransport

_FIGURE = "to the end"
_PYTHON = 'python3 -c ""'
_PROGRAM = "the probe, started by path"
_ENDPOINT = "connection, probe and check of the facts"
_LIMIT_S = 2.0


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    probe = str(node_folder() / "probe" / "__main__.py")
    return Measure(
        title="Facts of one node",
        description="All steps of the probe on this machine, which has no cards, no RDMA and no NCCL. "
        "The version call and checksum of a libnccl.so.2 of 250 MB take 0.2 s of CPU more.",
        reference=_PYTHON,
        figures=(_FIGURE,),
        targets=(Target(_PROGRAM, _FIGURE, _LIMIT_S), Target(_ENDPOINT, _FIGURE, _LIMIT_S)),
        series=run_rounds(
            [
                _command(_PYTHON, [sys.executable, "-c", ""], workspace),
                _command(_PROGRAM, [sys.executable, probe], workspace),
                Contestant(_ENDPOINT, _through_endpoint),
            ],
            repetitions=repetitions,
        ),
    )


def _command(name: str, command: list[str], workspace: Workspace) -> Contestant:
    def run() -> Mapping[str, float]:
        return {_FIGURE: time_job(Job([command], cwd=Path(workspace.folder), env=workspace.env)).end}

    return Contestant(name, run)


def _through_endpoint() -> Mapping[str, float]:
    begun = time.monotonic()
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        endpoint.probe([], {}, None)
    return {_FIGURE: time.monotonic() - begun}
