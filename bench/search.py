"""The search of a rank's log for the texts of the catalogue: the node's part of `orch diagnose`, and grep."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import CommandFailed, Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace, installed
from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import patterns_of
from orchestrator.node.endpoint.search import search

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import PatternBody, SearchRequest

SIZE, TIME = 100_000_000, "time"
WORDS, SEED = 5000, 5
LOGS = ("a training's log", "lines that all differ")

DESCRIPTION = f"""\
A rank's log of {SIZE:,} bytes without any error is searched for the texts of all signatures: by the code that `orch diagnose` runs on
a node, in this process, and by `grep -F -f`, without the expressions. *{LOGS[0].capitalize()}* repeats lines that differ in their numbers;
in *{LOGS[1]}*, random words of {WORDS:,} follow a time. 0.4 s are 250 MB/s."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """The time to search a log."""
    patterns = patterns_of(CATALOGUE.values())
    texts = workspace.folder / "texts"
    texts.write_text("".join(f"{text}\n" for body in patterns for text in body["texts"]), encoding="utf-8")
    contestants = []
    for name, lines in zip(LOGS, (_training, _different), strict=True):
        attempt = workspace.folder / name.replace(" ", "-")
        file = attempt / "n0" / "rank-0.out"
        file.parent.mkdir(parents=True)
        _write(file, lines())
        grep = Job(
            [[installed("grep"), "-c", "-v", "-F", "-f", str(texts), str(file)]], workspace.folder, workspace.env
        )
        contestants += [
            Contestant(f"grep, {name}", _time_of(grep)),
            Contestant(f"orch, {name}", _search(attempt, patterns)),
        ]
    series = run_rounds(contestants, repetitions=repetitions)
    targets = (
        Target(f"orch, {LOGS[0]}", TIME, 0.4),
        *(Target(f"orch, {name}", TIME, 1.0, baseline=f"grep, {name}") for name in LOGS),
    )
    return Measure("Search for the cause of a failure", DESCRIPTION, f"grep, {LOGS[0]}", (TIME,), targets, series)


def _write(file: Path, lines: Iterator[str]) -> None:
    with file.open("w", encoding="utf-8") as opened:
        while opened.tell() < SIZE:
            opened.writelines(line for _, line in zip(range(10_000), lines, strict=False))


def _training() -> Iterator[str]:
    draw, step = random.Random(SEED), 0
    while True:
        step += 1
        yield f"step={step} loss={draw.random():.4f} lr=0.0003 tokens/s={draw.randrange(1 << 20)} memory=40.{draw.randrange(10)}GiB\n"


def _different() -> Iterator[str]:
    draw = random.Random(SEED)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randrange(3, 10))) for _ in range(WORDS)]
    while True:
        yield f"10:{draw.randrange(60):02}:{draw.randrange(60):02} {' '.join(draw.choices(words, k=draw.randrange(5, 15)))}\n"


def _time_of(job: Job) -> Callable[[], Mapping[str, float]]:
    return lambda: {TIME: time_job(job).end}


def _search(attempt: Path, patterns: list[PatternBody]) -> Callable[[], Mapping[str, float]]:
    request: SearchRequest = {
        "attempt_dir": str(attempt),
        "nodes": None,
        "patterns": patterns,
        "kernel": [],
        "max_bytes": 1 << 30,
        "wait_s": 60.0,
    }

    def run() -> Mapping[str, float]:
        begun = time.monotonic()
        reply, _ = search(request, b"")
        elapsed_s = time.monotonic() - begun
        if reply["is_partial"] or any(log["hits"] for log in reply["logs"]):
            raise CommandFailed("the log was not searched whole, or has errors")
        return {TIME: elapsed_s}

    return run
