"""How long it takes to reach many nodes and start something on each, and to stop it, with orch and with others."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.place import Place, installed
from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

START, STOP, THREADS, FILES = "connect, push, start", "stop all", "threads", "open files"
_PROGRAMS = Path(__file__).parent / "programs"
ORCH, COLD, FABRIC, PDSH = "orch", "orch, on never used nodes", "Fabric, true", "pdsh, true"

NOTE = """\
{nodes} loopback addresses of one sshd. orch connects, pushes, starts an agent and a sleeping rank on each node, and knows that
each of them runs; the two others run `true`. orch and Fabric are timed within their processes, without their imports; pdsh is
timed as a whole. *{stop}*: until no rank and no agent is left, over the connections that are there. All nodes' work is done by the
processors that the contestants have, too: orch's two Pythons a node are what a cluster does in parallel."""


def measure(place: Place, *, repetitions: int, nodes: int) -> Measure:
    with open_farm() as farm:
        ground = _Ground(place, farm, nodes)
        series = run_rounds(ground.contestants(), repetitions=repetitions)
    targets = (
        Target(ORCH, START, 1.5, other=FABRIC),
        Target(ORCH, START, 0.5, other=PDSH),
        Target(ORCH, STOP, 5.0),
    )
    note = NOTE.format(nodes=nodes, stop=STOP)
    return Measure(f"{nodes} nodes", note, FABRIC, (START, STOP, THREADS, FILES), targets, series)


def measure_crowd(place: Place, *, repetitions: int) -> Measure:
    """So many nodes that this machine cannot play them well: what is told is what orch itself takes, once."""
    del repetitions
    with open_farm() as farm:
        ground = _Ground(place, farm, 1024)
        series = run_rounds([ground.contestant(ORCH, ground.orch)], repetitions=1)
    note = "As above, once, after a warm-up: one processor core plays 256 nodes here."
    return Measure("1,024 nodes", note, ORCH, (START, STOP, THREADS, FILES), (), series)


class _Ground:
    """The farm, and what the contestants need to reach it."""

    def __init__(self, place: Place, farm: Farm, nodes: int) -> None:
        self._farm, self._place, self._nodes = farm, place, nodes
        self._env = {**place.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h"}
        self._hosts = farm.addresses(nodes)
        self._code = place.folder / "code"
        self._code.mkdir()
        shutil.copyfile(_PROGRAMS / "hello.py", self._code / "hello.py")
        self._inventory = farm.inventory(place.folder, nodes=nodes)

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        return [
            self.contestant(ORCH, self.orch),
            self.contestant(FABRIC, self._fabric),
            self.contestant(PDSH, self._pdsh),
            self.contestant(COLD, self._orch_cold),
        ]

    def contestant(self, name: str, run: Callable[[], Mapping[str, float]]) -> Contestant:
        def alone() -> Mapping[str, float]:
            figures = run()
            # what the last one still does on the nodes' side is not the next one's to bear
            until(lambda: not self._farm.processes(), deadline_s=60, what=f"the processes of {name} to end")
            return figures

        return Contestant(name, alone)

    def orch(self) -> Mapping[str, float]:
        return self._figures(["start_nodes.py", str(self._inventory)])

    def _orch_cold(self) -> Mapping[str, float]:
        fresh = self._farm.inventory(self._farm.folder, nodes=self._nodes)  # with other work folders each time
        return self._figures(["start_nodes.py", str(fresh)])

    def _fabric(self) -> Mapping[str, float]:
        return self._figures(["fabric_true.py", str(self._farm.ssh_config), *self._hosts])

    def _pdsh(self) -> Mapping[str, float]:
        words = [installed("pdsh"), "-f", "64", "-R", "ssh", "-w", ",".join(self._hosts), "true"]
        return {START: time_job(Job([words], cwd=self._code, env=self._env)).end}

    def _figures(self, words: Sequence[str]) -> Mapping[str, float]:
        """What one of the programs here says of itself."""
        program, *rest = words
        job = Job([[sys.executable, str(_PROGRAMS / program), *rest]], cwd=self._code, env=self._env)
        said = time_job(job, limit_s=600.0).output.decode()
        line = next((line for line in said.splitlines() if line.startswith("figures ")), None)
        if line is None:
            raise CommandFailed(f"{program} gives no figures: {said[-300:]}")
        names = {"start": START, "stop": STOP, "threads": THREADS, "files": FILES}
        return {names[name]: value for name, value in json.loads(line.removeprefix("figures ")).items()}


measure_64 = partial(measure, nodes=64)
measure_256 = partial(measure, nodes=256)
