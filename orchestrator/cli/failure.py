"""The cause of a failed run in its short form, after its outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TextIO

from orchestrator.cli.console import print_text, without_controls
from orchestrator.run import Failure, RunRecord

RETRY = {
    "retry": "yes: another attempt can help",
    "elsewhere": "yes: another attempt can help on other nodes",
    "never": "no: the run fails the same way until that is corrected",
}
RETRY_UNKNOWN = "unknown: the text does not show if another attempt can help"


def print_failure(record: RunRecord, stream: TextIO | None = None) -> None:
    """Print why a run failed, by default on stderr, if its record has a diagnosis."""
    print_text("".join(f"{without_controls(line)}\n" for line in failure_lines(record)), stream or sys.stderr)


def failure_lines(record: RunRecord) -> Iterator[str]:
    """The reason for which a run failed; none if its record has no diagnosis."""
    if record.failure is not None and record.failure.is_diagnosed:
        yield from chain(_report(record.failure), labelled("more", [f"orch diagnose {record.id}"]))


def _report(failure: Failure) -> Iterator[str]:
    if failure.cause is None:
        yield from labelled("cause", ["unknown: no line names one"])
        yield from labelled("began on", filter(None, [failure.origin]))
        yield from labelled("errors", failure.proof)
        return
    yield from labelled("cause", [failure.cause])
    yield from labelled("began on", [failure.origin or "unknown: the lines name no rank"])
    yield from labelled("proof", failure.proof)
    yield from labelled("next", failure.remedy)
    yield from labelled("retry", [RETRY[failure.retry]])
    if failure.confidence != "high":
        yield from labelled("confidence", [f"{failure.confidence}: {failure.reason}"])


def labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """The label before the first line."""
    for index, line in enumerate(lines):
        yield f"{label if index == 0 else '':<11} {' '.join(line.split())}"
