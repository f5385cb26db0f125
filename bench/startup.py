"""How long a user waits for the help."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.place import Place
from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds

_FIGURE = "to the end"
_IMPORTS = 'python -c "import typer, rich"'


def measure(place: Place, *, repetitions: int) -> Measure:
    commands = {
        _IMPORTS: [sys.executable, "-c", "import typer, rich"],
        'python -c ""': [sys.executable, "-c", ""],
        "orch --help": [str(place.orch), "--help"],
        "orch status --help": [str(place.orch), "status", "--help"],
    }
    contestants = [_contestant(name, command, place) for name, command in commands.items()]
    return Measure(
        title="Start-up",
        note="A process from start to end.",
        reference=_IMPORTS,
        figures=(_FIGURE,),
        targets=(Target("orch --help", _FIGURE, 1.5, other=_IMPORTS),),
        series=run_rounds(contestants, repetitions=repetitions),
    )


def _contestant(name: str, command: Sequence[str], place: Place) -> Contestant:
    def run() -> Mapping[str, float]:
        return {_FIGURE: time_job(Job([command], cwd=Path(place.folder), env=place.env)).end}

    return Contestant(name, run)
