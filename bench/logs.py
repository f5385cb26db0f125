"""Merged logs of many nodes: lines per second, delay of a line, memory of the command; orch and other programs."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.shared_run import RUN, write_node, write_output, write_run
from bench.workspace import UNBUFFERED, Workspace, installed
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

HOSTS, LINES, FOLLOWED_NODES = 4, 200_000, 64
RATE, END, DELAY, LONGEST, MEMORY = "lines/s", "to the end", "delay", "longest delay", "memory"
SIZE, PRINTED = 1_000_000_000, "time"
TAIL = "tail -n 3, on the node"
PARTS = {
    "--tail 3": ("--tail", "3"),
    "--since 1s": ("--since", "1s"),
    "--rank 0": ("--rank", "0"),
    "--stream err": ("--stream", "err"),
}
SHARED_NODES, SHARED_RANKS, SHARED_BYTES, SHARED_S = 64, 8, 10_000_000, 3600
SHARED, SHARED_TAIL = "orch logs --tail 3", "tail -n 3 of all files"
SHARED_BARS = "orch logs --tail 3, progress bars"
SSH_TAIL = "orch logs --tail 3, over SSH"
_PROGRAMS = Path(__file__).parent / "programs"
LIVE, AFTER, PDSH, CLUSH = "orch ssh-launch", "orch logs, afterwards", "pdsh", "clush"

DESCRIPTION = f"""\
{HOSTS} loopback addresses of one sshd; a Python program writes {LINES:,} lines on each. Every line has to arrive, and those of a node
in their order: all are compared. *{RATE.capitalize()}*: all lines, divided by the time from start to end of the command. *orch logs* reads
and merges the files of the preceding run. The output of every contestant goes to a pipe that is read at once."""
DELAY_DESCRIPTION = f"""\
{HOSTS} nodes write 10 lines per second each, for 5 s. *Delay*: from the moment that the program wrote a line to its arrival on the
command's standard output; median and longest of a run. clush writes unbuffered here; at full speed, above, buffered is quicker."""
FOLLOW_DESCRIPTION = f"""\
{FOLLOWED_NODES} nodes write 500 lines per second each, for 10 s; memory is the peak resident set of the command's largest process."""

END_DESCRIPTION = f"""\
A run on two nodes has ended: rank 0 wrote 100 lines, rank 1 {SIZE:,} bytes of lines to its output and one line to its errors.
*Time*: of `orch logs` with an option that selects few of them; `{TAIL}` is `ssh NODE tail -n 3 FILE` for the large file."""

SHARED_DESCRIPTION = f"""\
{SHARED_NODES} nodes of {SHARED_RANKS} ranks share a folder, as under Slurm; each rank wrote {SHARED_BYTES:,} bytes in an hour, and a line of errors at the start
and at the end. *Time*: of `orch logs --tail 3`, which prints the last three lines of the run, through one endpoint; `tail` prints the last
three lines of each file, without their times. *Progress bars*: each output is one line of carriage returns, without an end. *Over SSH*: the same logs
on {SHARED_NODES} loopback addresses of one sshd, each with a separate folder."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """The rate of merged lines."""
    with open_farm() as farm:
        setup = _Setup(workspace, farm, HOSTS)
        series = run_rounds(setup.at_full_speed(), repetitions=repetitions)
    targets = (
        *(Target(name, END, 1.0, baseline=PDSH) for name in (LIVE, AFTER)),
        *(Target(name, END, 0.2, baseline=CLUSH) for name in (LIVE, AFTER)),
    )
    return Measure("Merged logs", DESCRIPTION, PDSH, (END, RATE), targets, series)


def measure_delay(workspace: Workspace, *, repetitions: int) -> Measure:
    """The delay of a line."""
    with open_farm() as farm:
        setup = _Setup(workspace, farm, HOSTS)
        series = run_rounds(setup.at_low_rate(), repetitions=repetitions)
    targets = (Target(LIVE, DELAY, 0.5), Target(LIVE, LONGEST, 0.5))
    return Measure("Delay of a line", DELAY_DESCRIPTION, PDSH, (DELAY, LONGEST), targets, series)


def measure_memory(workspace: Workspace, *, repetitions: int) -> Measure:
    """The memory of a command that follows many nodes."""
    with open_farm() as farm:
        setup = _Setup(workspace, farm, FOLLOWED_NODES)
        series = run_rounds([Contestant(LIVE, setup.memory)], repetitions=repetitions)
    return Measure("Following", FOLLOW_DESCRIPTION, LIVE, (MEMORY,), (Target(LIVE, MEMORY, 300.0),), series)


def measure_end(workspace: Workspace, *, repetitions: int) -> Measure:
    """The time to print a small part of a large log."""
    with open_farm() as farm:
        series = run_rounds(_Setup(workspace, farm, 2).at_the_end(), repetitions=repetitions)
    targets = tuple(Target(f"orch logs {part}", PRINTED, 0.5, baseline=TAIL, beyond=True) for part in PARTS)
    return Measure("A small part of a large log", END_DESCRIPTION, TAIL, (PRINTED,), targets, series)


def measure_shared(workspace: Workspace, *, repetitions: int) -> Measure:
    """The time to print the last lines of many nodes that share a folder."""
    commands = {}
    for name, is_bar in ((SHARED, False), (SHARED_BARS, True)):
        workdir = workspace.folder / f"work-{is_bar}"
        size = {"nodes": SHARED_NODES, "ranks": SHARED_RANKS, "size": SHARED_BYTES, "duration_s": SHARED_S}
        write_run(workdir, **size, is_progress_bar=is_bar)
        inventory = workspace.folder / f"{workdir.name}.yaml"
        text = f"name: bench\ntransport: local\naccelerator: cpu\ndevices: {SHARED_RANKS}\ndefaults: {{workdir: {workdir}}}\nnodes: [{{name: n0}}]\n"
        inventory.write_text(text, encoding="utf-8")
        if not is_bar:
            commands[SHARED_TAIL] = [installed("tail"), "-n", "3", *sorted(map(str, workdir.rglob("rank-*")))]
        commands[name] = [str(workspace.orch), "logs", RUN, "-i", str(inventory), "--tail", "3"]
    jobs = {name: Job([words], cwd=workspace.folder, env=workspace.env) for name, words in commands.items()}
    with open_farm() as farm:
        jobs[SSH_TAIL] = _ended_over_ssh(workspace, farm)
        contestants = [Contestant(name, _time_of(job)) for name, job in jobs.items()]
        series = run_rounds(contestants, repetitions=repetitions)
    return Measure(
        "The end of the logs of many nodes",
        SHARED_DESCRIPTION,
        SHARED_TAIL,
        (PRINTED,),
        tuple(Target(name, PRINTED, 2.0) for name in (SHARED, SHARED_BARS, SSH_TAIL)),
        series,
    )


def _ended_over_ssh(workspace: Workspace, farm: Farm) -> Job:
    """Launch a run over SSH that ends, and give it long logs; returns the command that prints its last lines."""
    inventory = farm.inventory(workspace.folder, nodes=SHARED_NODES, devices=SHARED_RANKS)
    code, orch = workspace.folder / "empty", str(workspace.orch)
    code.mkdir()
    launch = [orch, "ssh-launch", "-i", str(inventory), "--no-check", "--", "true"]
    time_job(Job([launch], cwd=code, env=workspace.env), limit_s=600.0)
    output, begun = write_output(farm.folder, SHARED_BYTES), time.time() - SHARED_S
    output.chmod(0o644)
    folders = [file.parent for file in farm.folder.rglob("offsets.jsonl")]
    assert len(folders) == SHARED_NODES
    for folder in folders:
        first = int(folder.name.removeprefix("n")) * SHARED_RANKS
        write_node(folder, range(first, first + SHARED_RANKS), output, begun=begun, duration_s=SHARED_S)
    return Job([[orch, "logs", "--tail", "3"]], cwd=code, env=workspace.env)


def _time_of(job: Job) -> Callable[[], Mapping[str, float]]:
    return lambda: {PRINTED: time_job(job).end}


class _Setup:
    """The sshd farm, and the commands, environment and files of the contestants."""

    def __init__(self, workspace: Workspace, farm: Farm, nodes: int) -> None:
        self._farm, self._orch = farm, str(workspace.orch)
        self._env = {**workspace.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h"}
        self._hosts = ",".join(farm.addresses(nodes))
        # in the farm's folder, which the nodes' account can enter
        self._site = farm.folder / "site"
        self._site.mkdir(mode=0o755)
        self._site.chmod(0o755)
        shutil.copyfile(_PROGRAMS / "write_lines.py", self._site / "write_lines.py")
        (self._site / "write_lines.py").chmod(0o644)
        self._code = workspace.folder / "code"
        self._code.mkdir()
        shutil.copyfile(_PROGRAMS / "write_lines.py", self._code / "write_lines.py")
        self._inventory = farm.inventory(workspace.folder, nodes=nodes)

    def at_full_speed(self) -> list[Contestant]:
        """In the order in which they take turns: `orch logs` reads the logs of the launch before it."""
        commands = self._commands(LINES, 0)
        return [self._contestant(name, self._rate_of(commands[name])) for name in (LIVE, AFTER, PDSH, CLUSH)]

    def at_low_rate(self) -> list[Contestant]:
        """In the order in which they take turns."""
        commands = self._commands(50, 10)
        return [self._contestant(name, self._delay_of(commands[name])) for name in (LIVE, PDSH, CLUSH)]

    def memory(self) -> Mapping[str, float]:
        """The peak memory of the largest process of orch, in MB."""
        words = [sys.executable, str(_PROGRAMS / "peak_memory.py"), *self._commands(5000, 500)[LIVE]]
        output = time_job(Job([words], cwd=self._code, env=self._env)).output.decode()
        return {MEMORY: float(json.loads(output.removeprefix("figures "))["memory"])}

    def at_the_end(self) -> list[Contestant]:
        """After a run with a large log: `tail` on the node, and `orch logs` with each option."""
        flood = f"yes step=100000 loss=1.2345 lr=0.0003 | head -c {SIZE}; echo warning >&2"
        script = f'if [ "$RANK" = 0 ]; then seq 100; else {flood}; fi'
        launch = [self._orch, "ssh-launch", "-i", str(self._inventory), "--", "sh", "-c", script]
        time_job(self._job([*launch[:2], "--detach", *launch[2:]], self._env))
        [file] = until(lambda: [*self._farm.folder.rglob("rank-1.out")], awaited="the large log")
        until(lambda: file.stat().st_size == SIZE and not self._farm.processes(), deadline_s=60, awaited="the end")
        commands = {TAIL: ["ssh", "-F", str(self._farm.ssh_config), "n1", "tail", "-n", "3", str(file)]}
        commands |= {f"orch logs {part}": [self._orch, "logs", *words] for part, words in PARTS.items()}
        return [Contestant(name, _time_of(self._job(words, self._env))) for name, words in commands.items()]

    def _commands(self, count: int, rate: int) -> dict[str, Sequence[str]]:
        program = f"{self._farm.python} {self._site}/write_lines.py {count} {rate}"
        launch = [self._orch, "ssh-launch", "-i", str(self._inventory), "--"]
        return {
            LIVE: [*launch, "write_lines.py", str(count), str(rate)],
            AFTER: [self._orch, "logs"],
            PDSH: ["pdsh", "-R", "ssh", "-w", self._hosts, program],
            CLUSH: ["clush", "-w", self._hosts, "-S", "-o", f"-F {self._farm.ssh_config}", program],
        }

    def _contestant(self, name: str, run: Callable[[], Mapping[str, float]]) -> Contestant:
        def run_and_wait() -> Mapping[str, float]:
            figures = run()
            until(lambda: not self._farm.processes(), deadline_s=60, awaited=f"the processes of {name} to end")
            return figures

        return Contestant(name, run_and_wait)

    def _job(self, words: Sequence[str], env: Mapping[str, str]) -> Job:
        program, *arguments = words
        return Job([[installed(program), *arguments]], cwd=self._code, env=env)

    def _rate_of(self, words: Sequence[str]) -> Callable[[], Mapping[str, float]]:
        def run() -> Mapping[str, float]:
            timing = time_job(self._job(words, self._env))
            _check(timing.output)
            return {END: timing.end, RATE: HOSTS * LINES / timing.end}

        return run

    def _delay_of(self, words: Sequence[str]) -> Callable[[], Mapping[str, float]]:
        def run() -> Mapping[str, float]:
            marker = b" written="
            job = self._job(words, {**self._env, **UNBUFFERED})
            timing = time_job(job, marker=marker, lines=50 * HOSTS)
            written = [float(moment) for moment in re.findall(rb" written=(\S+)", timing.output)]
            delays = sorted(timing.begun + arrival - sent for arrival, sent in zip(timing.lines, written, strict=True))
            return {DELAY: delays[len(delays) // 2], LONGEST: delays[-1]}

        return run


def _check(output: bytes) -> None:
    """Raise CommandFailed unless all lines of all nodes are there, once, and in order."""
    numbers: dict[bytes, list[int]] = {}
    for node, number in re.findall(
        rb"(?m)^(\S+) step=(\d+) loss=\S+ lr=0.0003 tokens/s=123456 memory=40.2GiB$", output
    ):
        numbers.setdefault(node, []).append(int(number))
    if len(numbers) != HOSTS or any(found != list(range(LINES)) for found in numbers.values()):
        counts = {node.decode(): len(found) for node, found in numbers.items()}
        raise CommandFailed(f"lines are missing, repeated or out of order: {counts}")
