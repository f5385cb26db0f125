"""How fast the logs of many nodes become one, how late a line is, and what following takes, with orch and with others."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.place import UNBUFFERED, Place, installed
from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

HOSTS, LINES, MANY = 4, 200_000, 64
RATE, END, DELAY, LONGEST, MEMORY = "lines/s", "to the end", "delay", "longest delay", "memory"
_PROGRAMS = Path(__file__).parent / "programs"
LIVE, AFTER, PDSH, CLUSH = "orch ssh-launch", "orch logs, afterwards", "pdsh", "clush"

NOTE = f"""\
{HOSTS} loopback addresses of one sshd; a Python program writes {LINES:,} lines on each. Every line has to arrive, and those of a node
in their order: all are compared. *{RATE.capitalize()}* are all of them by the time from the command to its end. *orch logs* reads
and merges the files of the run before it. Everybody's output goes into a pipe that is read at once."""
DELAY_NOTE = f"""\
{HOSTS} nodes write 10 lines a second each, for 5 s. *Delay*: from the moment that the program wrote a line down to its arrival on the
command's standard output; median and longest of a run. clush writes unbuffered here; at full speed, above, buffered is quicker."""
FOLLOW_NOTE = f"""\
{MANY} nodes write 500 lines a second each, for 10 s; memory is the resident set of the command at its largest."""


def measure(place: Place, *, repetitions: int) -> Measure:
    """The rate."""
    with open_farm() as farm:
        ground = _Ground(place, farm, HOSTS)
        series = run_rounds(ground.at_full_speed(), repetitions=repetitions)
    targets = (
        *(Target(name, END, 1.0, other=PDSH) for name in (LIVE, AFTER)),
        *(Target(name, END, 0.2, other=CLUSH) for name in (LIVE, AFTER)),
    )
    return Measure("Merged logs", NOTE, PDSH, (END, RATE), targets, series)


def measure_delay(place: Place, *, repetitions: int) -> Measure:
    """How late a line is."""
    with open_farm() as farm:
        ground = _Ground(place, farm, HOSTS)
        series = run_rounds(ground.at_low_rate(), repetitions=repetitions)
    targets = (Target(LIVE, DELAY, 0.5), Target(LIVE, LONGEST, 0.5))
    return Measure("Delay of a line", DELAY_NOTE, PDSH, (DELAY, LONGEST), targets, series)


def measure_memory(place: Place, *, repetitions: int) -> Measure:
    """What it takes to follow many nodes."""
    with open_farm() as farm:
        ground = _Ground(place, farm, MANY)
        series = run_rounds([Contestant(LIVE, ground.memory)], repetitions=repetitions)
    return Measure("Following", FOLLOW_NOTE, LIVE, (MEMORY,), (Target(LIVE, MEMORY, 300.0),), series)


class _Ground:
    """The farm, and what the contestants need to reach it."""

    def __init__(self, place: Place, farm: Farm, nodes: int) -> None:
        self._farm, self._orch = farm, str(place.orch)
        self._env = {**place.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h"}
        self._hosts = ",".join(farm.addresses(nodes))
        # in the farm's folder, which the nodes' account can enter
        self._site = farm.folder / "site"
        self._site.mkdir(mode=0o755)
        self._site.chmod(0o755)
        shutil.copyfile(_PROGRAMS / "write_lines.py", self._site / "write_lines.py")
        (self._site / "write_lines.py").chmod(0o644)
        self._code = place.folder / "code"
        self._code.mkdir()
        shutil.copyfile(_PROGRAMS / "write_lines.py", self._code / "write_lines.py")
        self._inventory = farm.inventory(place.folder, nodes=nodes)

    def at_full_speed(self) -> list[Contestant]:
        """In the order in which they take turns: orch's log is that of the run before it."""
        commands = self._commands(LINES, 0)
        return [self._contestant(name, self._rate_of(commands[name])) for name in (LIVE, AFTER, PDSH, CLUSH)]

    def at_low_rate(self) -> list[Contestant]:
        """In the order in which they take turns."""
        commands = self._commands(50, 10)
        return [self._contestant(name, self._delay_of(commands[name])) for name in (LIVE, PDSH, CLUSH)]

    def memory(self) -> Mapping[str, float]:
        """Of orch, that of its largest process is the memory."""
        words = [sys.executable, str(_PROGRAMS / "peak_memory.py"), *self._commands(5000, 500)[LIVE]]
        said = time_job(Job([words], cwd=self._code, env=self._env)).output.decode()
        return {MEMORY: float(json.loads(said.removeprefix("figures "))["memory"])}

    def _commands(self, count: int, rate: int) -> dict[str, Sequence[str]]:
        program = f"{self._farm.python} {self._site}/write_lines.py {count} {rate}"
        launch = [self._orch, "ssh-launch", "-i", str(self._inventory), "--"]
        return {
            LIVE: [*launch, "write_lines.py", str(count), str(rate)],
            AFTER: [self._orch, "logs"],
            PDSH: [installed("pdsh"), "-R", "ssh", "-w", self._hosts, program],
            CLUSH: [installed("clush"), "-w", self._hosts, "-S", "-o", f"-F {self._farm.ssh_config}", program],
        }

    def _contestant(self, name: str, run: Callable[[], Mapping[str, float]]) -> Contestant:
        def alone() -> Mapping[str, float]:
            figures = run()
            until(lambda: not self._farm.processes(), deadline_s=60, what=f"the processes of {name} to end")
            return figures

        return Contestant(name, alone)

    def _rate_of(self, words: Sequence[str]) -> Callable[[], Mapping[str, float]]:
        def run() -> Mapping[str, float]:
            timing = time_job(Job([words], cwd=self._code, env=self._env))
            _check(timing.output)
            return {END: timing.end, RATE: HOSTS * LINES / timing.end}

        return run

    def _delay_of(self, words: Sequence[str]) -> Callable[[], Mapping[str, float]]:
        def run() -> Mapping[str, float]:
            marker = b" written="
            env = {**self._env, **UNBUFFERED}
            timing = time_job(Job([words], cwd=self._code, env=env), marker=marker, lines=50 * HOSTS)
            written = [float(moment) for moment in re.findall(rb" written=(\S+)", timing.output)]
            delays = sorted(timing.begun + seen - then for seen, then in zip(timing.lines, written, strict=True))
            return {DELAY: delays[len(delays) // 2], LONGEST: delays[-1]}

        return run


def _check(output: bytes) -> None:
    """All lines of all nodes are there, once, and in their order."""
    numbers: dict[bytes, list[int]] = {}
    for node, number in re.findall(
        rb"(?m)^(\S+) step=(\d+) loss=\S+ lr=0.0003 tokens/s=123456 memory=40.2GiB$", output
    ):
        numbers.setdefault(node, []).append(int(number))
    if len(numbers) != HOSTS or any(found != list(range(LINES)) for found in numbers.values()):
        counts = {node.decode(): len(found) for node, found in numbers.items()}
        raise CommandFailed(f"lines are missing, twice or in another order: {counts}")
