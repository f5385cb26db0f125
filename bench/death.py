"""How long a run outlives its first death: a rank's, whose peers sleep, and a whole node's."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from bench.place import Place
from bench.rounds import Contestant, Measure, Target, run_rounds
from tests.grounds.cli import Orch
from tests.grounds.hosts import open_hosts
from tests.grounds.marked import Process, processes_of, still_alive
from tests.grounds.sshd import open_farm
from tests.until import until

NODES, DEVICES, AT_LEAST = 4, 2, 20
GONE, SAID = "all is gone", "the record says FAILED"
RANK, VANISHED = "orch: kill -9 of a rank", "orch: the link of a node is cut"

NOTE = f"""\
{NODES} nodes with {DEVICES} ranks each, which sleep, over ssh to loopback addresses. One rank gets SIGKILL. *{GONE.capitalize()}*: no rank and
no agent of the run is left on any node. No peer has to be in a collective for that."""
VANISHED_NOTE = f"""\
3 hosts in network namespaces, a sleeping rank on each. The link of one goes down without a word. *{GONE.capitalize()}*: nothing of the run
is left on the other hosts; the one that is cut off ends its rank after the isolation timeout."""


def measure(place: Place, *, repetitions: int) -> Measure:
    """A rank dies."""
    with open_farm() as farm:
        farm.inventory(place.folder, nodes=NODES, devices=DEVICES)
        orch = Orch(place.folder)

        def run() -> Mapping[str, float]:
            run_id = _started(orch, ranks=NODES * DEVICES)
            everything = processes_of(run_id)
            victim = next(pid for pid, _ in everything if _command(pid) == "sleep")
            begun = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            figures = _end(orch, run_id, everything, begun)
            until(lambda: not farm.processes(), deadline_s=30, what="the supervisor's connections to end")
            return figures

        series = run_rounds([Contestant(RANK, run)], repetitions=max(AT_LEAST, repetitions))
    targets = (Target(RANK, GONE, 2.0), Target(RANK, GONE, 5.0, worst=True))
    return Measure("Death of a rank", NOTE, RANK, (GONE, SAID), targets, series)


def measure_vanished(place: Place, *, repetitions: int) -> Measure:
    """A node is cut off."""
    with open_hosts() as hosts:
        hosts.inventory(place.folder)
        orch = hosts.orch(place.folder)

        def run() -> Mapping[str, float]:
            run_id = _started(orch, ranks=3)
            cut_off = hosts[1].processes()
            elsewhere = {process for process in processes_of(run_id) if process[0] not in cut_off}
            begun = time.monotonic()
            hosts[1].link(up=False)
            figures = _end(orch, run_id, elsewhere, begun)
            orch.kill_supervisor(run_id)
            hosts.heal()
            return figures

        series = run_rounds([Contestant(VANISHED, run)], repetitions=repetitions)
    targets = (Target(VANISHED, GONE, 15.0, worst=True), Target(VANISHED, SAID, 15.0, worst=True))
    return Measure("A node that vanishes", VANISHED_NOTE, VANISHED, (GONE, SAID), targets, series)


def _started(orch: Orch, *, ranks: int) -> str:
    """A run of sleepers that is up on all nodes, and supervised."""
    run_id = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    until(lambda: orch.supervisor(run_id), what="the supervisor")
    until(lambda: _sleepers(run_id) == ranks, what="all ranks")
    until(lambda: _state(orch, run_id) == "RUNNING", what="the supervisor to hear of all")
    return run_id


def _end(orch: Orch, run_id: str, processes: set[Process], begun: float) -> Mapping[str, float]:
    """When the last of the processes was gone, and when the record was final."""
    until(lambda: not still_alive(processes), deadline_s=60, what="the run's processes to end")
    gone = time.monotonic() - begun
    until(lambda: _state(orch, run_id) == "FAILED", deadline_s=60, what="the verdict")
    return {GONE: gone, SAID: time.monotonic() - begun}


def _state(orch: Orch, run_id: str) -> str:
    return str(json.loads((orch.home / "runs" / run_id / "run.json").read_text("utf-8"))["state"])


def _sleepers(run_id: str) -> int:
    return sum(1 for pid, _ in processes_of(run_id) if _command(pid) == "sleep")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
