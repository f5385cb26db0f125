"""A working folder with two local nodes, for this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.grounds.inventories import write_inventory


@contextmanager
def working_folder(folder: Path, nodes: tuple[str, ...] = ("n0", "n1")) -> Iterator[Path]:
    """Make `folder` the working folder, with an inventory.yaml of local nodes with two ranks each, and an empty run record."""
    base = {"name": "here", "accelerator": "cpu", "devices": 2, "transport": "local"}
    base |= {"defaults": {"workdir": str(folder / ".work"), "python": sys.executable}}
    write_inventory(folder / "inventory.yaml", base, {"nodes": [{"name": name} for name in nodes]})
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("ORCH_HOME", str(folder / ".orch-home"))
        yield folder
