"""The time to print the help."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import BIN, Workspace, installed

_FIGURE = "to the end"
_CLUSH = "clush --version"
_LIMIT_S = 0.2  # the target of the design


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    commands = {
        _CLUSH: ["clush", "--version"],
        "torchx --help": [str(BIN / "torchx"), "--help"],
        'python -c ""': [sys.executable, "-c", ""],
        "orch --help": [str(workspace.orch), "--help"],
        "orch status --help": [str(workspace.orch), "status", "--help"],
    }
    contestants = [_contestant(name, command, workspace) for name, command in commands.items()]
    return Measure(
        title="Start-up",
        description="A process from start to end. clush and torchx are Python programs, too.",
        reference=_CLUSH,
        figures=(_FIGURE,),
        targets=(Target("orch --help", _FIGURE, _LIMIT_S),),
        series=run_rounds(contestants, repetitions=repetitions),
    )


def _contestant(name: str, command: Sequence[str], workspace: Workspace) -> Contestant:
    def run() -> Mapping[str, float]:
        program, *words = command
        job = Job([[installed(program), *words]], cwd=Path(workspace.folder), env=workspace.env)
        return {_FIGURE: time_job(job).end}

    return Contestant(name, run)
