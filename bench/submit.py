"""The time from a submission to the first line of the program on a real Slurm: orch and other submitters."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import BIN, Workspace
from tests.grounds.slurm import Cluster, open_cluster
from tests.until import until

NODES = 2
HELLO = "hello from a rank"
FIRST, ALL = "first line", "line of each node"
_PROGRAMS = Path(__file__).parent / "programs"
_TIME = "00:05:00"

ORCH = "orch submit -- echo"
SBATCH = "sbatch + srun echo"
SUBMITIT = "submitit"
TORCHX = "torchx run utils.sh echo"
MARGIN_S = 0.7
PHASES = 2

DESCRIPTION = f"""\
A Slurm 22.05 of four slurmd on this machine, without accounting; {NODES} nodes, on each of which a program prints one line.
*{FIRST.capitalize()}*: until the first of them arrives on the command's standard output. orch follows its job itself. For the other contestants the
output files are read every 5 ms and printed, which is quicker than their own means and needs no accounting.
orch's lines come from ranks that have an agent, an environment, a rendezvous and a record. Slurm starts jobs once per second, so the
starts of the commands are spread evenly over a second, equally for all contestants, in {PHASES} times as many rounds as elsewhere."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    with open_cluster() as cluster:
        rounds = PHASES * repetitions
        series = run_rounds(_Setup(workspace, cluster, rounds).contestants(), repetitions=rounds)
    targets = (
        Target(ORCH, FIRST, MARGIN_S, baseline=SBATCH, beyond=True),
        Target(ORCH, FIRST, 1.0, baseline=TORCHX),
    )
    return Measure("Submission", DESCRIPTION, SBATCH, (FIRST, ALL), targets, series)


class _Setup:
    """The cluster, and the commands, environment and files of the contestants."""

    def __init__(self, workspace: Workspace, cluster: Cluster, rounds: int) -> None:
        self._cluster, self._orch, self._rounds = cluster, str(workspace.orch), rounds
        self._env = {**workspace.env, "SLURM_CONF": str(cluster.conf)}
        self._folder = cluster.folder / "bench"
        self._folder.mkdir(mode=0o755)
        self._code = workspace.folder / "code"
        self._code.mkdir()
        self._inventory = cluster.inventory(workspace.folder)
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
            phase = next(rounds) / self._rounds
            time.sleep((phase - time.time()) % 1.0)
            timing = time_job(Job([command()], cwd=self._code, env=self._env), marker=HELLO.encode(), lines=NODES)
            # the nodes of a job stay allocated until Slurm has cleaned it up
            until(lambda: not self._cluster.jobs(), deadline_s=60, awaited=f"the job of {name} to leave the queue")
            return {FIRST: timing.lines[0], ALL: timing.lines[-1]}

        return Contestant(name, run)

    def _submit(self) -> list[str]:
        return [self._orch, "submit", "-i", str(self._inventory), "-j", f"{NODES}x1", "--follow", "--", "echo", HELLO]

    def _sbatch(self) -> list[str]:
        folder = self._fresh()
        script = folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec srun echo '{HELLO}'\n", encoding="utf-8")
        shape = [f"--nodes={NODES}", "--ntasks-per-node=1", "--partition=debug", f"--time={_TIME}"]
        return self._tailed(folder / "out", ["sbatch", *shape, f"--output={folder / 'out'}", str(script)])

    def _submitit(self) -> list[str]:
        folder = self._fresh()
        shutil.copyfile(_PROGRAMS / "with_submitit.py", folder / "with_submitit.py")
        return self._tailed(folder / "*_log.out", [sys.executable, str(folder / "with_submitit.py"), str(folder)])

    def _torchx(self) -> list[str]:
        folder = self._fresh()
        scheduler_options = f"partition=debug,time={_TIME},job_dir={folder}"
        shape = [
            "--workspace",
            "",
            "--scheduler",
            "slurm",
            "-cfg",
            scheduler_options,
            "utils.sh",
            "--num_replicas",
            str(NODES),
        ]
        return self._tailed(folder / "slurm-*-sh-*.out", [str(BIN / "torchx"), "run", *shape, "echo", HELLO])

    def _tailed(self, files: Path, command: Sequence[str]) -> list[str]:
        return [sys.executable, str(_PROGRAMS / "submit_and_tail.py"), str(NODES), HELLO, str(files), *command]

    def _fresh(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(mode=0o755)
        return folder
