"""A command of orch looks for garbage rarely, and the process that owns a run does so only until the run has started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.until import until

# Loaded by the owner: an object in a reference cycle, in the oldest generation, and what a supervisor makes in a few hours.
MAKE_GARBAGE = """
import gc, os, sys, threading, time, weakref

class Cycle:
    pass

def make_garbage():
    while not os.path.exists(FOLDER + "/begin"):
        time.sleep(0.01)
    cycle = Cycle()
    cycle.itself = cycle
    gc.collect()
    found = weakref.ref(cycle)
    del cycle
    kept = [[] for _ in range(300_000)]
    with open(FOLDER + "/result", "w") as file:
        file.write("kept" if found() else "collected")

if "orchestrator.usecases.owner.start" in sys.orig_argv:
    threading.Thread(target=make_garbage, daemon=True).start()
"""


@pytest.mark.processes
def test_supervisor_collects_its_garbage(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(
        "name: here\naccelerator: cpu\ndevices: 1\ntransport: local\n"
        f"nodes: [{{name: n0, workdir: {tmp_path}/.work, python: {sys.executable}}}]\n"
    )
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{MAKE_GARBAGE}")
    orch = Orch(tmp_path, env={"PYTHONPATH": str(tmp_path / "hidden")})
    run = orch("ssh-launch", "--no-check", "--detach", "--", "sleep", "60").stdout.strip()
    until(lambda: orch.supervisor(run) is not None, awaited="the supervisor")
    (tmp_path / "begin").touch()
    until(lambda: (tmp_path / "result").exists() and (tmp_path / "result").read_text(), awaited="the result")
    orch("stop", run)
    assert (tmp_path / "result").read_text() == "collected"
