"""A node whose wall clock is wrong, or is set while its programs run; clock.c stands between them and the machine's clock."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.grounds.components import program


@dataclass(frozen=True, slots=True)
class WallClock:
    """What runs on `python`, and all that it starts, sees this clock; monotonic clocks and file times are the machine's."""

    folder: Path

    @property
    def python(self) -> Path:
        """The node's Python, for its `python:` in the inventory."""
        return self.folder / "python"

    def set(self, ahead_s: int) -> None:
        """Set it, from this moment on, so far ahead of the machine's clock."""
        offset = self.folder / "offset"
        offset.with_suffix(".new").write_text(f"{ahead_s}\n", encoding="ascii")
        offset.with_suffix(".new").chmod(0o644)
        offset.with_suffix(".new").replace(offset)


def wall_clock(place: Path, python: Path) -> WallClock:
    """Make a clock that is right as yet, in a folder of its own in `place`, which the node has to be able to read."""
    folder = place / f"clock-{secrets.token_hex(4)}"
    folder.mkdir()
    folder.chmod(0o755)
    library, source = folder / "clock.so", Path(__file__).with_name("clock.c")
    argv = [program("gcc"), "-shared", "-fPIC", "-O", f'-DOFFSET="{folder}/offset"', "-o", str(library), str(source)]
    subprocess.run(argv, check=True)
    library.chmod(0o755)
    clock = WallClock(folder)
    clock.python.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {python} "$@"\n', encoding="utf-8")
    clock.python.chmod(0o755)
    return clock
