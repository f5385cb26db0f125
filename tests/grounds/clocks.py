"""A node whose wall clock is wrong, or is set while its programs run: clock.c is preloaded over the C library's clock functions."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.grounds.components import program


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall clock of `python` and all its children; monotonic clocks and file times are the machine's."""

    folder: Path

    @property
    def python(self) -> Path:
        """The node's Python, for its `python:` in the inventory."""
        return self.folder / "python"

    def set(self, ahead_s: int) -> None:
        """Set the clock ahead of the machine's from now on."""
        offset = self.folder / "offset"
        offset.with_suffix(".new").write_text(f"{ahead_s}\n", encoding="ascii")
        offset.with_suffix(".new").chmod(0o644)
        offset.with_suffix(".new").replace(offset)


def wall_clock(parent: Path, python: Path) -> WallClock:
    """Make a clock without an offset in a new folder below `parent`, which the node must be able to read."""
    folder = parent / f"clock-{secrets.token_hex(4)}"
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
