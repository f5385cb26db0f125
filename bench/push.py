"""The memory of a launch that pushes much code, to one node and to several."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from tests.grounds.sshd import open_farm

CODE_MB, NODES = 100, 8
MEMORY, END = "memory", "to the end"
SINGLE, MANY = "1 node", f"{NODES} nodes"
_PROGRAMS = Path(__file__).parent / "programs"

DESCRIPTION = f"""\
{CODE_MB} MB of code that cannot be compressed go to new workdirs, which the nodes do not share: loopback addresses of one sshd, over
SSH. *{MEMORY.capitalize()}*: the peak resident set of the command's largest process. *{END.capitalize()}*: until the ranks, which
only print a line, have ended."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """The peak memory of a launch, to one node and to several."""
    code = workspace.folder / "code"
    code.mkdir()
    shutil.copyfile(_PROGRAMS / "hello.py", code / "hello.py")
    (code / "weights.bin").write_bytes(os.urandom(CODE_MB << 20))
    with open_farm() as farm:

        def launch(nodes: int) -> Callable[[], Mapping[str, float]]:
            def run() -> Mapping[str, float]:
                inventory = farm.inventory(farm.folder, nodes=nodes)
                words = [str(workspace.orch), "ssh-launch", "-i", str(inventory), "--", "hello.py"]
                command = [sys.executable, str(_PROGRAMS / "peak_memory.py"), *words]
                timing = time_job(Job([command], cwd=code, env=workspace.env), limit_s=600.0)
                figures = json.loads(timing.output.decode().removeprefix("figures "))
                return {MEMORY: float(figures["memory"]), END: timing.end}

            return run

        contestants = [Contestant(name, launch(nodes)) for name, nodes in ((SINGLE, 1), (MANY, NODES))]
        series = run_rounds(contestants, repetitions=repetitions)
    return Measure(
        f"Pushing {CODE_MB} MB", DESCRIPTION, SINGLE, (MEMORY, END), (Target(MANY, MEMORY, 1.2, SINGLE),), series
    )
