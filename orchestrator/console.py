"""All output of the commands. Colours only on a terminal, and never with NO_COLOR."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.logs.lines import LogLines, prefix_of, prefixed
from orchestrator.logs.printable import printable

PRINTED_CHARACTERS = 1 << 20  # written to stdout in one call, at least
LEAST_CUT = 12  # characters to which a table shortens a column even on a narrow terminal
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


def without_controls(text: str) -> str:
    """A text that may contain output of a rank or of another user, made safe for a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def inform(text: str) -> None:
    """Print a message about an action of orch; on stderr, because stdout is for results."""
    print(f"orch: {without_controls(text)}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    inform(f"warning: {text}")


def print_error(error: OrchError) -> None:
    """Print an error and its next step on stderr."""
    print(f"orch: error: {without_controls(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  next: {without_controls(error.hint)}", file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print a result as it is, on stdout."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a result as JSON, on stdout."""
    print_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


class LogView:
    """Prints the log lines and the messages of a watched run; every node's prefix has its own colour."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def inform(self, text: str) -> None:
        """Print a message."""
        inform(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        warn(text)

    def write(self, lines: Iterable[LogLines]) -> None:
        """Print and flush in pieces, so that memory stays bounded."""
        texts, size = [], 0
        for group in lines:
            texts.append(self._text(group) + "\n")
            size += len(texts[-1])
            if size >= PRINTED_CHARACTERS:
                print_text("".join(texts))
                texts, size = [], 0
        if texts:
            print_text("".join(texts))

    def _text(self, lines: LogLines) -> str:
        if self._as_json:
            return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines.to_json())
        prefix = prefix_of(lines)
        if self._colour:
            colour = _COLOURS[zlib.crc32(lines.node.encode()) % len(_COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        return prefixed(lines, prefix)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, cut: Sequence[str] = ()) -> None:
    """Print a table: on a terminal with frames, or with the `cut` columns shortened to its width; elsewhere plain lines."""
    cells = [["" if cell is None else without_controls(str(cell)) for cell in row] for row in rows]
    if cut or not sys.stdout.isatty():
        print_text("".join(f"{line}\n" for line in _plain_table(columns, cells, cut)))
        return
    from rich import box  # noqa: PLC0415  rich is imported only by commands that print a table with frames
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for line in cells:
        table.add_row(*map(Text, line))  # as Text, because rich reads words in brackets as markup
    Console(highlight=False).print(table)


def _plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]], cut: Sequence[str]) -> Iterator[str]:
    """One line per row. On a terminal, the `cut` columns share what the others leave; the others are always whole."""
    lines = [columns, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if cut and sys.stdout.isatty():
        shortened = [index for index, name in enumerate(columns) if name in cut]
        left = shutil.get_terminal_size().columns - 2 * (len(columns) - 1) - sum(widths)
        left += sum(widths[index] for index in shortened)
        for position, index in enumerate(shortened):
            widths[index] = min(widths[index], max(LEAST_CUT, left // (len(shortened) - position)))
            left -= widths[index]
    for line in lines:
        whole = zip(line, widths, strict=True)
        yield "  ".join(
            (cell if len(cell) <= width else f"{cell[: width - 1]}…").ljust(width) for cell, width in whole
        ).rstrip()


def print_summary(summary: dict[str, Any]) -> None:
    """Print the trainer's summary of a run that is done."""
    labels = {
        "steps": "steps",
        "first_loss": "first loss",
        "last_loss": "last loss",
        "tokens_per_s": "tokens/s",
        "samples_per_s": "samples/s",
        "wall_s": "wall time (s)",
        "step_time_p50_s": "step p50 (s)",
        "step_time_p99_s": "step p99 (s)",
        "mfu": "MFU",
        "checkpoint": "checkpoint",
    }
    for key, label in labels.items():
        value = summary.get(key)
        if value is not None:
            print(
                f"  {label:<14} {value:,.4f}" if isinstance(value, float) else f"  {label:<14} {value}", file=sys.stderr
            )
