"""The time to connect to many nodes and start a process on each, and to stop them: orch and other programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace, installed
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

START, STOP, THREADS, FILES = "connect, push, start", "stop all", "threads", "open files"
CONTROLLER, NODE = "controller's CPU per node", "node's CPU"
FIGURES = (START, CONTROLLER, NODE, STOP, THREADS, FILES)
_PROGRAMS = Path(__file__).parent / "programs"
ORCH, COLD, FABRIC, PDSH = "orch", "orch, on never used nodes", "Fabric, true", "pdsh, true"

DESCRIPTION = """\
{nodes} loopback addresses of one sshd. orch connects, pushes, starts an agent and a sleeping rank on each node, and waits until
each rank runs; Fabric and pdsh run `true`. orch and Fabric are timed within their processes, without their imports; pdsh is
timed as a whole. *{stop}*: until no rank and no agent is left, over the open connections. The contestants and all nodes share the processors of
this machine: the nodes' part would run in parallel on a cluster. So the processor time of a start is stated separately: that of the process
that connects, and that of the endpoint, the guard, the agent and the rank on each node, without sshd."""


def measure(workspace: Workspace, *, repetitions: int, nodes: int) -> Measure:
    with open_farm() as farm:
        setup = _Setup(workspace, farm, nodes)
        series = run_rounds(setup.contestants(), repetitions=repetitions)
    targets = (
        Target(ORCH, START, 1.5, baseline=FABRIC),
        Target(ORCH, START, 0.5, baseline=PDSH),
        Target(ORCH, CONTROLLER, 1.5, baseline=FABRIC),
        Target(ORCH, NODE, 0.06),
        Target(ORCH, STOP, 5.0),
    )
    description = DESCRIPTION.format(nodes=nodes, stop=STOP)
    return Measure(f"{nodes} nodes", description, FABRIC, FIGURES, targets, series)


def measure_1024(workspace: Workspace, *, repetitions: int) -> Measure:
    """More nodes than this machine can simulate well: a single run of orch."""
    del repetitions
    with open_farm() as farm:
        setup = _Setup(workspace, farm, 1024)
        series = run_rounds([setup.contestant(ORCH, setup.orch)], repetitions=1)
    description = "As above, one run after a warm-up: each processor core simulates 256 nodes."
    return Measure("1,024 nodes", description, ORCH, FIGURES, (), series)


class _Setup:
    """The sshd farm, and the commands, environment and files of the contestants."""

    def __init__(self, workspace: Workspace, farm: Farm, nodes: int) -> None:
        self._farm, self._workspace, self._nodes = farm, workspace, nodes
        self._env = {**workspace.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h"}
        self._hosts = farm.addresses(nodes)
        self._code = workspace.folder / "code"
        self._code.mkdir()
        shutil.copyfile(_PROGRAMS / "hello.py", self._code / "hello.py")
        self._inventory = farm.inventory(workspace.folder, nodes=nodes)

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        return [
            self.contestant(ORCH, self.orch),
            self.contestant(FABRIC, self._fabric),
            self.contestant(PDSH, self._pdsh),
            self.contestant(COLD, self._orch_cold),
        ]

    def contestant(self, name: str, run: Callable[[], Mapping[str, float]]) -> Contestant:
        def run_and_wait() -> Mapping[str, float]:
            figures = run()
            # processes that one contestant leaves on the nodes must not slow down the next
            until(lambda: not self._farm.processes(), deadline_s=60, awaited=f"the processes of {name} to end")
            return figures

        return Contestant(name, run_and_wait)

    def orch(self) -> Mapping[str, float]:
        return self._figures(["start_nodes.py", str(self._inventory)])

    def _orch_cold(self) -> Mapping[str, float]:
        fresh = self._farm.inventory(self._farm.folder, nodes=self._nodes)  # with new work folders each time
        return self._figures(["start_nodes.py", str(fresh)])

    def _fabric(self) -> Mapping[str, float]:
        return self._figures(["fabric_true.py", str(self._farm.ssh_config), *self._hosts])

    def _pdsh(self) -> Mapping[str, float]:
        words = [installed("pdsh"), "-f", "64", "-R", "ssh", "-w", ",".join(self._hosts), "true"]
        return {START: time_job(Job([words], cwd=self._code, env=self._env)).end}

    def _figures(self, words: Sequence[str]) -> Mapping[str, float]:
        """The figures that a program of bench/programs prints."""
        program, *rest = words
        job = Job([[sys.executable, str(_PROGRAMS / program), *rest]], cwd=self._code, env=self._env)
        output = time_job(job, limit_s=600.0).output.decode()
        line = next((line for line in output.splitlines() if line.startswith("figures ")), None)
        if line is None:
            raise CommandFailed(f"{program} printed no figures: {output[-300:]}")
        names = {
            "start": START,
            "stop": STOP,
            "threads": THREADS,
            "files": FILES,
            "controller": CONTROLLER,
            "node": NODE,
        }
        return {names[name]: value for name, value in json.loads(line.removeprefix("figures ")).items()}


measure_64 = partial(measure, nodes=64)
measure_256 = partial(measure, nodes=256)
