"""The time to connect to many nodes and start a process on each, and to stop them: orch and other programs."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.scale import cpu_s
from bench.workspace import Workspace, installed
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

START, STOP, THREADS, FILES = "connect, push, start", "stop all", "threads", "open files"
CONTROLLER, WHOLE, NODE = "controller's CPU per node", "with programs", "node's CPU"
FIGURES = (START, CONTROLLER, WHOLE, NODE, STOP, THREADS, FILES)
_PROGRAMS = Path(__file__).parent / "programs"
ORCH, COLD, FABRIC, PDSH = "orch", "orch, on never used nodes", "Fabric, true", "pdsh, true"
COMMAND = "orch ssh-launch --detach"

DESCRIPTION = """\
{nodes} loopback addresses of one sshd. orch connects, pushes, starts an agent and a sleeping rank on each node, and waits until
each rank runs; Fabric and pdsh run `true`. orch and Fabric are timed within their processes, without their imports; pdsh is
timed as a whole. *{stop}*: until no rank and no agent is left, over the open connections. The contestants and all nodes share the processors of
this machine: the nodes' part would run in parallel on a cluster. So the processor time of a start is stated separately: that of the process
that connects, and that of the endpoint, the guard, the agent and the rank on each node, without sshd. *{whole}*: that of all processes of the
controller from their start on, also per node. *{command}* is the command as a whole with the process that it leaves to supervise the
run; it also checks all nodes."""


def measure(workspace: Workspace, *, repetitions: int, nodes: int) -> Measure:
    with open_farm() as farm:
        setup = _Setup(workspace, farm, nodes)
        series = run_rounds(setup.contestants(), repetitions=repetitions)
    targets = (
        Target(ORCH, START, 2.0, baseline=FABRIC),
        Target(ORCH, START, 0.6, baseline=PDSH),
        Target(ORCH, CONTROLLER, 1.5, baseline=FABRIC),
        Target(COMMAND, WHOLE, 1.5, baseline=FABRIC),
        Target(ORCH, NODE, 0.06),
        Target(ORCH, STOP, 5.0),
    )
    description = DESCRIPTION.format(nodes=nodes, stop=STOP, whole=WHOLE.capitalize(), command=COMMAND)
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
            self.contestant(COMMAND, self._command),
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
        before_s = _children_s()
        end = time_job(Job([words], cwd=self._code, env=self._env)).end
        return {START: end, WHOLE: (_children_s() - before_s) / self._nodes}

    def _command(self) -> Mapping[str, float]:
        """With a new home each time, so that no answers of an earlier check are kept."""
        home = Path(tempfile.mkdtemp(dir=self._workspace.folder))
        env, orch = {**self._env, "ORCH_HOME": str(home)}, str(self._workspace.orch)
        words = [orch, "ssh-launch", "-i", str(self._inventory), "--detach", "--", "sleep", "1000"]
        before_s, begun = _children_s(), time.monotonic()
        done = subprocess.run(words, cwd=self._code, env=env, capture_output=True, text=True, check=False)
        end, run = time.monotonic(), done.stdout.strip()
        if done.returncode:
            raise CommandFailed(f"orch ssh-launch ended with {done.returncode}: {done.stderr[-300:]}")
        owner = int((home / "runs" / run / "supervisor.lock").read_text("utf-8").split()[1])
        controller_s = _children_s() - before_s + cpu_s(owner)
        stopped = subprocess.run(
            [orch, "stop", run], cwd=self._code, env=env, capture_output=True, text=True, check=False
        )
        if stopped.returncode:
            raise CommandFailed(f"orch stop ended with {stopped.returncode}: {stopped.stderr[-300:]}")
        return {START: end - begun, WHOLE: controller_s / self._nodes}

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
            "whole": WHOLE,
            "node": NODE,
        }
        return {names[name]: value for name, value in json.loads(line.removeprefix("figures ")).items()}


def _children_s() -> float:
    """The CPU seconds of the processes that were waited for so far, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


measure_64 = partial(measure, nodes=64)
measure_256 = partial(measure, nodes=256)
