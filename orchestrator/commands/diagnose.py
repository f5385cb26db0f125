"""`orch diagnose`: the cause of a failed run, where it began, the proof and the next steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.actions.diagnose import Diagnosed, Hit, diagnose_files, is_run, origin_text
from orchestrator.actions.diagnose_run import diagnose_run
from orchestrator.console import (
    ProgressLine,
    inform,
    print_error,
    print_json,
    print_text,
    size_text,
    without_controls,
)

_RETRY = {
    "retry": "another attempt can help",
    "elsewhere": "another attempt can help on other nodes",
    "never": "another attempt fails the same way until this is changed",
}
_FAILED = ("FAILED", "LOST")
MOST_LINE = 300
"""Characters of a log line that are shown."""


def diagnose(words: Sequence[str], signatures: Path | None, *, as_json: bool) -> int:
    """Print the diagnosis of a run or of log files; returns 0, also if the cause is unknown: docs/decisions/049."""
    if is_run(words):
        with ProgressLine() as progress:
            result = diagnose_run(words[0] if words else "latest", signatures, progress.update)
        if result.state not in _FAILED:
            inform(f"run {result.run} is {result.state}; what its logs have so far:")
    else:
        result = diagnose_files(words, signatures)
    if as_json:
        print_json(result.to_json())
    else:
        print_text("".join(f"{without_controls(line)}\n" for line in _report(result)))
        inform(
            f"searched {len(result.files)} {'file' if len(result.files) == 1 else 'files'}, {size_text(result.size_bytes)}"
        )
    if result.missing is None:
        return 0
    print_error(result.missing)
    return result.missing.exit_code


def _report(result: Diagnosed) -> Iterator[str]:
    found = result.diagnosis
    if found.cause and found.confidence is not None and found.retry is not None:
        yield from _labelled("cause", [found.cause])
        yield from _labelled("began on", [origin_text(found.ranks, found.nodes) or "unknown: the lines name no rank"])
        yield from _labelled("proof", map(_line, found.proof))
        yield from _labelled("next", found.remedy)
        yield from _labelled("retry", [_RETRY[found.retry]])
        yield from _labelled("confidence", [f"{found.confidence.value}: {found.reason}"])
    elif found.errors:
        yield from _labelled("cause", ["unknown: no line names one"])
        yield from _labelled("errors", map(_line, found.errors))
        yield from _labelled("next", ["read the lines above the first of these"])
    else:
        yield from _labelled("cause", ["unknown: no error was found"])
    for label, entries in (("or", found.alternatives), ("follows", found.consequences), ("also", found.observations)):
        yield from _labelled(label, (_folded_text(entry.text, entry.count, entry.ranks) for entry in entries))
    yield from _labelled("nodes", result.remarks)


def _line(hit: Hit) -> str:
    origin = origin_text([] if hit.rank is None else [hit.rank], [hit.node] if hit.node else [])
    return f"{hit.location}: {f'[{origin}] ' if origin else ''}{hit.origin.text[:MOST_LINE]}"


def _folded_text(text: str, count: int, ranks: tuple[int, ...]) -> str:
    lines = f"{count} line" if count == 1 else f"{count} lines"
    return f"{text} ({', '.join(filter(None, (lines, origin_text(ranks, ()))))})"


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """The label before the first line."""
    for index, line in enumerate(lines):
        yield f"{label if index == 0 else '':<11} {' '.join(line.split())}"
