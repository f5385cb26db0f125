"""How long a user waits for the help."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.place import BIN, Place, installed
from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds

_FIGURE = "to the end"
_CLUSH = "clush --version"
_LIMIT_S = 0.2  # what the design promises


def measure(place: Place, *, repetitions: int) -> Measure:
    commands = {
        _CLUSH: [installed("clush"), "--version"],
        "torchx --help": [str(BIN / "torchx"), "--help"],
        'python -c ""': [sys.executable, "-c", ""],
        "orch --help": [str(place.orch), "--help"],
        "orch status --help": [str(place.orch), "status", "--help"],
    }
    contestants = [_contestant(name, command, place) for name, command in commands.items()]
    return Measure(
        title="Start-up",
        note="A process from start to end. clush and torchx are programs of Python, too.",
        reference=_CLUSH,
        figures=(_FIGURE,),
        targets=(Target("orch --help", _FIGURE, _LIMIT_S),),
        series=run_rounds(contestants, repetitions=repetitions),
    )


def _contestant(name: str, command: Sequence[str], place: Place) -> Contestant:
    def run() -> Mapping[str, float]:
        return {_FIGURE: time_job(Job([command], cwd=Path(place.folder), env=place.env)).end}

    return Contestant(name, run)
