"""
`python -m bench.soak [--minutes M] [--every S] [--seed N]`: a training under random faults must reach its last step with the loss of an undisturbed one.

The shared trainer on three ssh hosts of network namespaces and a spare, with `--max-retries`. Kinds and places of the faults follow from the seed. After these
minutes there are no more faults, and the training continues to its last step: how many steps a disturbed training makes is not known before.
A host that was cut off is connected again, and one that was powered off boots again, when the next attempt has begun.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.host_training import FAULTS, NODE_FAULTS, RANKS, SAVE_STEPS, OrchTraining, stats
from orchestrator.run import RunState
from tests.grounds.hosts import Hosts, open_hosts
from tests.grounds.marked import processes_of
from tests.grounds.metrics import read_metrics, step_numbers
from tests.until import until

WARM_UP_STEPS = 500
SHARE = 0.6
"""The share of the minutes for which the undisturbed training lasts: more than the ETTR to be expected, so that the faults last to the end."""
LIMIT_S = 300.0


def main() -> int:
    """Print each fault and the result; 1 if a promise is broken."""
    options = _options()
    with open_hosts(RANKS + 1) as hosts, tempfile.TemporaryDirectory(prefix="orch-soak-") as folder:
        steps = options.steps or _steps(hosts, Path(folder), options.minutes * 60 * SHARE)
        _report(f"{steps} steps; seed {options.seed}")
        undisturbed = _training(hosts, Path(folder, "undisturbed"), steps)
        _end(undisturbed)
        disturbed = _training(hosts, Path(folder, "disturbed"), steps)
        draw = random.Random(options.seed)
        problems: list[str] = []
        try:
            _disturb(disturbed, draw, every_s=options.every, until_s=time.monotonic() + options.minutes * 60)
        except pytest.fail.Exception as error:  # from `until`
            problems.append(str(error))
            disturbed.orch("stop", disturbed.run, code=None)
        problems += _problems(disturbed, undisturbed)
        for problem in problems:
            _report(f"BROKEN: {problem}")
        ettr = stats(disturbed)["ettr"]
        measured = "" if ettr is None else f", ETTR {ettr:.1%}"
        _report(
            f"{disturbed.record().attempt} attempts{measured}, {'not ' if problems else ''}equal to the undisturbed training"
        )
        sys.stdout.write(disturbed.orch("stats", disturbed.run).stdout)
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Train under random faults.")
    parser.add_argument(
        "--minutes", type=float, default=30, metavar="M", help="how long to let faults happen (default: 30)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="the last step, instead of one that follows from the minutes"
    )
    parser.add_argument("--every", type=float, default=60, metavar="S", help="seconds between two faults (default: 60)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults (default: 1)")
    return parser.parse_args()


def _training(hosts: Hosts, folder: Path, steps: int) -> OrchTraining:
    folder.mkdir()
    return OrchTraining(hosts, folder, steps=steps, spares=[hosts[RANKS].name], isolation_timeout="5s")


def _steps(hosts: Hosts, folder: Path, seconds: float) -> int:
    """How many steps this machine makes in that time."""
    training = _training(hosts, folder / "warm-up", WARM_UP_STEPS)
    _end(training)
    times: list[float] = [record["step_time_s"] for record in read_metrics(training.out)]
    return round(seconds / statistics.median(times[len(times) // 2 :]))  # the first steps are slower


def _end(training: OrchTraining) -> None:
    """Wait for the end of a training that nothing disturbs."""
    until(lambda: training.record().state.ended, deadline_s=86400, awaited="the training")
    assert training.record().state is RunState.DONE, training.evidence()


def _disturb(training: OrchTraining, draw: random.Random, *, every_s: float, until_s: float) -> None:
    """Let faults happen until then; return when the training has ended."""
    begun, count, attempt = time.monotonic(), 0, 0
    while _continues(training, attempt=attempt, until_s=begun + (count + 1) * every_s, pause_s=every_s / 4):
        if time.monotonic() >= until_s:
            _report(f"{time.monotonic() - begun:5.0f} s, step {training.step()}: {count} faults, no more of them")
            until(
                lambda: training.record().state.ended,
                deadline_s=2 * (until_s - begun) + LIMIT_S,
                awaited=training.evidence,
            )
            return
        name = draw.choice(sorted(FAULTS))
        members = training.members()
        host = draw.choice(members[1:] if FAULTS[name] in NODE_FAULTS else members)
        attempt = training.record().attempt
        _report(f"{time.monotonic() - begun:5.0f} s, step {training.step()}: {name}, {host.name}")
        FAULTS[name](training, host)
        count += 1


def _continues(training: OrchTraining, *, attempt: int, until_s: float, pause_s: float) -> bool:
    """
    Wait until an attempt after this one has saved a new step, for that time, and at least for the pause; return False if the training has ended.

    Three attempts in a row without a saved step would end the run, as they should.
    """
    until(
        lambda: training.record().state.ended or training.record().attempt > attempt,
        deadline_s=LIMIT_S,
        awaited=training.evidence,
    )
    _heal_hosts(training.hosts)
    step = training.step()
    until(
        lambda: training.record().state.ended or training.step() > step + SAVE_STEPS,
        deadline_s=LIMIT_S,
        awaited=training.evidence,
    )
    pause, end = threading.Event(), max(until_s, time.monotonic() + pause_s)
    while time.monotonic() < end and not training.record().state.ended:
        pause.wait(0.2)
    return not training.record().state.ended


def _heal_hosts(hosts: Hosts) -> None:
    """Boot the hosts that are off, and connect those that are cut off."""
    for host in hosts.hosts:
        if not host.is_up:
            host.revive()
        host.link(up=True)


def _problems(disturbed: OrchTraining, undisturbed: OrchTraining) -> Iterator[str]:
    """The promises that are broken after the training has ended."""
    record = disturbed.record()
    if record.state is not RunState.DONE:
        yield f"the run is {record.state.value}: {record.message}"
    elif step_numbers(disturbed.out) != step_numbers(undisturbed.out):
        yield "steps, losses, learning rates or gradient norms are not those of the undisturbed training"
    _heal_hosts(disturbed.hosts)
    try:
        until(lambda: not _left(disturbed), deadline_s=LIMIT_S, awaited="all processes of the run to end")
    except pytest.fail.Exception:  # from `until`
        yield f"still running: {_left(disturbed)}"


def _left(training: OrchTraining) -> dict[str, list[str]]:
    """All processes of the run, and those on every host."""
    found = {host.name: sorted(host.processes().values()) for host in training.hosts.hosts}
    found["run"] = [str(pid) for pid, _ in processes_of(training.run)]
    return {name: processes for name, processes in found.items() if processes}


def _report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
