"""`orch diagnose`: the cause of a failed run, where it began, the proof and the next steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.actions.diagnose import Diagnosed, Hit, diagnose_files, origin_text
from orchestrator.console import inform, print_json, print_text, size_text, without_controls

_RETRY = {
    "retry": "another attempt can help",
    "elsewhere": "another attempt can help on other nodes",
    "never": "another attempt fails the same way until this is changed",
}
MOST_LINE = 300
"""Characters of a log line that are shown."""


def diagnose(files: Sequence[str], signatures: Path | None, *, as_json: bool) -> int:
    """Print the diagnosis of log files; returns 0, also if the cause is unknown: docs/decisions/049."""
    result = diagnose_files(files, signatures)
    if as_json:
        print_json(result.to_json())
    else:
        print_text("".join(f"{without_controls(line)}\n" for line in _report(result)))
        inform(
            f"searched {len(result.sources)} {'file' if len(result.sources) == 1 else 'files'}, {size_text(result.size_bytes)}"
        )
    return 0


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
