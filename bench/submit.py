"""How long from a submission to the first line of the program on a real Slurm, with orch and with others."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.place import BIN, Place
from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from tests.grounds.slurm import Cluster, open_cluster
from tests.until import until

NODES = 2
SAID = "hello from a rank"
FIRST, ALL = "first line", "line of each node"
_PROGRAMS = Path(__file__).parent / "programs"
_TIME = "00:05:00"

ORCH = "orch submit -- echo"
SBATCH = "sbatch + srun echo"
SUBMITIT = "submitit"
TORCHX = "torchx run utils.sh echo"
MARGIN_S = 0.7
PHASES = 2

NOTE = f"""\
A Slurm 22.05 of four slurmd on this machine, without accounting; {NODES} nodes, on each of which a program prints one line.
*{FIRST.capitalize()}*: until the first of them stands on the command's standard output. orch follows its job itself. Of the others' jobs
the output files are read every 5 ms and printed, which is quicker than what they have themselves, and needs no accounting.
orch's lines come from ranks that have an agent, an environment, a rendezvous and a record. Slurm starts jobs once a second, so the
commands are started at moments that are spread evenly over a second, the same ones for all; {PHASES} runs for each that is counted elsewhere."""


def measure(place: Place, *, repetitions: int) -> Measure:
    with open_cluster() as cluster:
        rounds = PHASES * repetitions
        series = run_rounds(_Ground(place, cluster, rounds).contestants(), repetitions=rounds)
    targets = (
        Target(ORCH, FIRST, MARGIN_S, other=SBATCH, beyond=True),
        Target(ORCH, FIRST, 1.0, other=TORCHX),
    )
    return Measure("Submission", NOTE, SBATCH, (FIRST, ALL), targets, series)


class _Ground:
    """The cluster, and what the contestants need to reach it."""

    def __init__(self, place: Place, cluster: Cluster, rounds: int) -> None:
        self._cluster, self._orch, self._rounds = cluster, str(place.orch), rounds
        self._env = {**place.env, "SLURM_CONF": str(cluster.conf)}
        self._folder = cluster.folder / "bench"
        self._folder.mkdir(mode=0o755)
        self._code = place.folder / "code"
        self._code.mkdir()
        self._inventory = cluster.inventory(place.folder)
        self._count = 0

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        return [
            self._contestant(ORCH, self._submit),
            self._contestant(SBATCH, self._sbatch),
            self._contestant(SUBMITIT, self._submitit),
            self._contestant(TORCHX, self._torchx),
        ]

    def _contestant(self, name: str, command: Callable[[], Sequence[str]]) -> Contestant:
        rounds = itertools.count()

        def run() -> Mapping[str, float]:
            wanted = next(rounds) / self._rounds
            time.sleep((wanted - time.time()) % 1.0)
            timing = time_job(Job([command()], cwd=self._code, env=self._env), marker=SAID.encode(), lines=NODES)
            # a job that is still being cleaned up keeps the nodes from the next one
            until(lambda: not self._cluster.jobs(), deadline_s=60, what=f"the job of {name} to be gone")
            return {FIRST: timing.lines[0], ALL: timing.lines[-1]}

        return Contestant(name, run)

    def _submit(self) -> list[str]:
        return [self._orch, "submit", "-i", str(self._inventory), "-j", f"{NODES}x1", "--follow", "--", "echo", SAID]

    def _sbatch(self) -> list[str]:
        folder = self._fresh()
        script = folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec srun echo '{SAID}'\n", encoding="utf-8")
        shape = [f"--nodes={NODES}", "--ntasks-per-node=1", "--partition=debug", f"--time={_TIME}"]
        return self._tailed(folder / "out", ["sbatch", *shape, f"--output={folder / 'out'}", str(script)])

    def _submitit(self) -> list[str]:
        folder = self._fresh()
        shutil.copyfile(_PROGRAMS / "with_submitit.py", folder / "with_submitit.py")
        return self._tailed(folder / "*_log.out", [sys.executable, str(folder / "with_submitit.py"), str(folder)])

    def _torchx(self) -> list[str]:
        folder = self._fresh()
        own = f"partition=debug,time={_TIME},job_dir={folder}"
        shape = ["--workspace", "", "--scheduler", "slurm", "-cfg", own, "utils.sh", "--num_replicas", str(NODES)]
        return self._tailed(folder / "slurm-*-sh-*.out", [str(BIN / "torchx"), "run", *shape, "echo", SAID])

    def _tailed(self, files: Path, command: Sequence[str]) -> list[str]:
        return [sys.executable, str(_PROGRAMS / "submit_and_tail.py"), str(NODES), SAID, str(files), *command]

    def _fresh(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(mode=0o755)
        return folder
