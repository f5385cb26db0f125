"""
`python -m bench.faults [--repetitions N] [--only NAME,…] [--orch-alone]`: the time from a fault to the next new step.

The shared trainer on three ssh hosts of network namespaces and a spare; the same script under `torchrun --max-restarts` with c10d and, where it is installed,
under NVRx's ft_launcher; they have no spare and so no row for the loss of a node. *Ended*: no rank of the attempt is left on a host that can be reached. *Next step*: one that no attempt had made.
The lost node is never that of rank 0, without which orch restarts only under further conditions (docs/ssh.md).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.host_training import (
    FAULTS,
    LAUNCHERS,
    NODE_FAULTS,
    RANKS,
    ElasticTraining,
    HostTraining,
    OrchTraining,
    healed,
    kill_guard,
)
from orchestrator.node.system.processes import stat_of
from tests.grounds.hosts import Hosts, open_hosts
from tests.grounds.marked import Process, still_alive
from tests.until import until

LIMIT_S = 120.0
FIRST_STEPS = 15  # one checkpoint, at least
Times = tuple[float, float]
"""Seconds from the fault until the attempt has ended, and until the next new step."""
Start = Callable[[Hosts, Path], HostTraining]


def main() -> int:
    """Print the table. A launcher that does not recover in time is part of the report, not an error."""
    options = _options()
    launchers: dict[str, Start] = {"orch": _orch}
    if not options.orch_alone:
        launchers |= {name: partial(_elastic, name) for name in LAUNCHERS}
    sys.stdout.write("| fault | launcher | ended | next step | runs |\n|---|---|---|---|---|\n")
    with open_hosts(RANKS + 1) as hosts:
        for name in options.only or FAULTS:
            for launcher, start in launchers.items():
                if launcher in LAUNCHERS and FAULTS[name] in (kill_guard, *NODE_FAULTS):
                    continue  # it has no guard and no spare
                if launcher in LAUNCHERS and find_spec(LAUNCHERS[launcher][0].partition(".")[0]) is None:
                    sys.stdout.write(f"| {name} | {launcher} | not installed | | |\n")
                    continue
                times, problem = _measured(hosts, name, start, options.repetitions)
                cells = [_cell([pair[index] for pair in times]) for index in (0, 1)]
                sys.stdout.write(f"| {name} | {launcher} | {' | '.join(cells)} | {len(times)}{problem} |\n")
                sys.stdout.flush()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Measure the recovery from faults.")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="runs of each fault (default: 5)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,…", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--orch-alone", action="store_true", help="measure orch alone")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - FAULTS.keys():
        parser.error(f"no fault is called {min(unknown)!r}")
    return options


def _measured(hosts: Hosts, name: str, start: Start, repetitions: int) -> tuple[list[Times], str]:
    """The times of each run, up to one that does not recover, and the reason."""
    times: list[Times] = []
    for number in range(repetitions):
        with healed(hosts), tempfile.TemporaryDirectory(prefix="orch-recovery-") as folder:
            try:
                times.append(_recovery(start(hosts, Path(folder)), name, number))
            except (pytest.fail.Exception, AssertionError) as error:
                sys.stderr.write(f"{error}\n")
                return times, f", then not within {LIMIT_S:.0f} s"
    return times, ""


def _orch(hosts: Hosts, folder: Path) -> HostTraining:
    return OrchTraining(hosts, folder, steps=10**6, spares=[hosts[RANKS].name])


def _elastic(launcher: str, hosts: Hosts, _folder: Path) -> HostTraining:
    return ElasticTraining(hosts, launcher, steps=10**6)


def _recovery(training: HostTraining, name: str, number: int) -> Times:
    """Let the fault happen in a training that has saved and whose restart is prepared, on another host than that of rank 0."""
    training.wait_for_step(FIRST_STEPS)
    training.wait_until_prepared()
    members = training.members()
    host = members[1 + number % (RANKS - 1)]
    ranks = {member.name: _process(training.rank(member)) for member in members}
    begun = time.monotonic()
    FAULTS[name](training, host)
    if FAULTS[name] in NODE_FAULTS:
        del ranks[host.name]
    until(lambda: not still_alive(set(ranks.values())), deadline_s=LIMIT_S, awaited="the attempt to end")
    ended_s = time.monotonic() - begun
    training.wait_for_step(training.step(), deadline_s=LIMIT_S)
    return ended_s, time.monotonic() - begun


def _process(pid: int) -> Process:
    stat = stat_of(pid)
    assert stat is not None, f"process {pid} has ended"
    return pid, stat[2]


def _cell(seconds: list[float]) -> str:
    """Median and worst."""
    return f"{statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s" if seconds else "-"


if __name__ == "__main__":
    sys.exit(main())
