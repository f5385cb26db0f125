"""All output of the commands. Colours only on a terminal or with FORCE_COLOR, and never with NO_COLOR."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.colours import coloured, with_coloured_cells
from orchestrator.cli.footer import ERASE_LINE, Footer, Losses
from orchestrator.cli.numbers import size_text
from orchestrator.cli.tables import table_lines
from orchestrator.errors import OrchError
from orchestrator.logs.folding import Fold, Folding
from orchestrator.logs.lines import LogLines, prefix_of, prefixed
from orchestrator.logs.printable import printable
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from orchestrator.run import RunRecord
    from orchestrator.usecases.reports.log_reader import LiveRun  # at run time it would load what queries nodes

SCHEMA = 1
"""The version of the JSON that commands print: 2 once a field is removed or changes its meaning; new fields do not count."""
PRINTED_CHARACTERS = 1 << 20  # written to stdout in one call, at least
FIRST_PROGRESS_S, PROGRESS_S = 5.0, 30.0  # where there is no terminal
LEAST_ESTIMATED_S = 2.0  # of work before the remaining time is estimated
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # by rank
_AGENT_COLOUR = 90  # grey


def has_colour(stream: TextIO) -> bool:
    """True if the output to a stream is coloured: on a terminal, or with FORCE_COLOR; never with NO_COLOR."""
    return not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or stream.isatty())


def without_controls(text: str) -> str:
    """A text that may contain output of a rank or of another user, made safe for a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def inform(text: str) -> None:
    """Print a message about an action of orch; on stderr, because stdout is for results."""
    print(f"orch: {without_controls(text)}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    print(f"orch: {_severity('warning')}: {without_controls(text)}", file=sys.stderr, flush=True)


def _severity(word: str) -> str:
    return coloured(word) if has_colour(sys.stderr) else word


def print_error(error: OrchError) -> None:
    """Print an error and its next step on stderr."""
    print(f"orch: {_severity('error')}: {without_controls(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  next: {without_controls(error.hint)}", file=sys.stderr, flush=True)


def left_text(record: RunRecord) -> str:
    """A sentence on the folders that a run has left in its code folder, and the next step."""
    names = sorted(record.left, key=lambda name: -record.left[name])
    listed = ", ".join(f"{name}/ ({size_text(record.left[name])})" for name in names[:3]) + (", …" if names[3:] else "")
    are = "is" if len(names) == 1 else "are"
    return (
        f"{listed} {are} in the folder of run {record.id} alone; next: keep: [{', '.join(names[:3])}] in the inventory, if later runs "
        f"shall see such folders, or orch cp {record.id}:{names[0]} DIR"
    )


def print_text(text: str, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(text)
    stream.flush()


def print_json(value: object, *, is_by_name: bool = False) -> None:
    """
    Print JSON; an object begins with the version of the schema, as does each one in a list (docs/decisions/182).

    A number that JSON does not have, such as the NaN that a program reports as its loss, is null.

    Args:
        is_by_name: the keys are names of nodes, so that each value has the version.
    """
    if isinstance(value, list):
        value = [_with_schema(each) for each in value]
    elif is_by_name and isinstance(value, dict):
        value = {name: _with_schema(each) for name, each in value.items()}
    else:
        value = _with_schema(value)
    try:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, indent=1, ensure_ascii=False)
    print_text(text + "\n")


def _with_schema(value: object) -> object:
    return {"schema": SCHEMA, **value} if isinstance(value, dict) else value


def print_json_error(error: OrchError) -> None:
    """Print an error as one line of JSON on stdout, for a program that reads the output of --json."""
    content = {"message": without_controls(str(error)), "next": error.hint or None, "code": error.exit_code}
    print_text(json.dumps({"schema": SCHEMA, "error": content}, ensure_ascii=False) + "\n")


class ProgressLine:
    """
    The progress of a launch, on stderr; for a `with` statement.

    On a terminal, one line that is replaced and at last erased. Elsewhere, a line only if something takes long.
    """

    def __init__(self, *, first_s: float = FIRST_PROGRESS_S) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._first_s = first_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._shown: Progress | None = None
        self._begun_s = 0.0
        """When the present work began, by time.monotonic()."""
        self._first: tuple[float, float] | None = None
        """When it first advanced, and its share then: the code is packed before any of it is sent."""

    def __enter__(self) -> Self:
        if not self._on_terminal:
            with suppress(RuntimeError):  # the user's limit of threads is reached
                threading.Thread(target=self._print_slow_work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def update(self, progress: Progress) -> None:
        with self._lock:
            if self._ended.is_set():
                return  # the work continues in its thread after Ctrl-C
            now_s = time.monotonic()
            if self._shown is None or self._shown.work != progress.work:
                self._begun_s, self._first = now_s, None
            if self._first is None and progress.share:
                self._first = now_s, progress.share
            self._shown = progress
            if self._on_terminal:
                text = self._text(now_s)[: shutil.get_terminal_size().columns - 1]
                self._write(f"{ERASE_LINE}{text}" if progress.waiting else ERASE_LINE)

    def warn(self, text: str) -> None:
        """Print a warning; the progress is shown again with its next change."""
        self.inform(f"warning: {text}")

    def inform(self, text: str) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._erase()
            inform(text)

    def end(self) -> None:
        """Erase the line, and show no more progress."""
        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                self._erase()

    def _text(self, now_s: float) -> str:
        assert self._shown is not None
        progress = self._shown
        done = progress.total - progress.waiting
        size = "" if progress.size_bytes is None else f" {size_text(progress.size_bytes)},"
        text = f"{progress.work}{size} {done}/{progress.total}"
        is_stuck = not progress.share and now_s - self._begun_s > LEAST_ESTIMATED_S
        if progress.names and (done or is_stuck):
            text += f", waiting for {fold(progress.names)}"
        first_s, first_share = self._first or (now_s, progress.share)
        if progress.share > first_share and now_s - first_s > LEAST_ESTIMATED_S:
            share_per_s = (progress.share - first_share) / (now_s - first_s)
            if progress.size_bytes is not None:
                text += f", {size_text(share_per_s * progress.total * progress.size_bytes)}/s"
            text += f", {(1 - progress.share) / share_per_s:.0f} s left"
        return f"orch: {without_controls(text)}"

    def _print_slow_work(self) -> None:
        """Print the progress of work that takes longer than `first_s`, then every PROGRESS_S."""
        pause_s = self._first_s
        while not self._ended.wait(pause_s):
            with self._lock:
                if self._shown is not None and self._shown.waiting and not self._ended.is_set():
                    self._write(f"{self._text(time.monotonic())}\n")
                    pause_s = PROGRESS_S

    def _erase(self) -> None:
        if self._on_terminal and self._shown is not None:
            self._write(ERASE_LINE)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it any more
            sys.stderr.write(text)
            sys.stderr.flush()


class LogView:
    """Prints the log lines and the messages of a watched run; the prefixes of ranks have colours, neighbours different ones."""

    def __init__(
        self,
        *,
        as_json: bool,
        quiet: bool = False,
        stream: TextIO | None = None,
        ranks_of: Callable[[str], int] | None = None,
        timestamps: bool = False,
        is_live: bool = False,
    ) -> None:
        """
        Print the lines to `stream`, by default stdout.

        Args:
            ranks_of: the number of ranks of a node, to fold equal lines of many ranks; the last ones are printed by `close`.
            timestamps: print the time before each line.
            is_live: show the state of the run below the lines, on a terminal.
        """
        self._as_json = as_json
        self._ranks_of = ranks_of
        self._folding = Folding()
        self._quiet = quiet
        self._stream = stream or sys.stdout
        self._colour = has_colour(self._stream)
        self._timestamps = timestamps
        self._losses = Losses()
        self._bar_of: tuple[str, int | None] | None = None
        """The node and rank whose progress bar is shown."""
        self._footer = Footer(sys.stderr, has_colour=has_colour(sys.stderr)) if is_live else None

    def inform(self, text: str) -> None:
        """Print a message, unless quiet."""
        if not self._quiet:
            self._print_kept()
            with self._above_footer():
                inform(text)

    def warn(self, text: str) -> None:
        self._print_kept()
        with self._above_footer():
            warn(text)

    def show(self, live: LiveRun | None) -> None:
        """Show the state of the run below the lines from now on; None shows nothing."""
        if live is not None and live.training is not None and live.training.loss is not None:
            self._losses.add(live.training.step, live.training.loss)
        if self._footer is not None:
            self._footer.show(live)

    def loss_text(self, record: RunRecord) -> str:
        """The course of the loss as a sparkline; empty if it is unknown."""
        ends = [record.summary.get(name) for name in ("first_loss", "last_loss")] if record.attempt == 1 else []
        return self._losses.text(*(loss if isinstance(loss, int | float) else None for loss in ends))

    def _above_footer(self) -> AbstractContextManager[None]:
        return nullcontext() if self._footer is None else self._footer.erased()

    def write(self, lines: Iterable[LogLines]) -> None:
        """Print and flush in pieces, so that memory stays bounded."""
        if self._footer is not None:
            lines = self._without_bars(lines, self._footer)
        if self._ranks_of is None:
            self._print(map(self._text, lines))
        else:
            self._print(map(self._fold_text, chain(self._folding.add(lines), self._folding.overdue())))

    def close(self) -> None:
        """Print the lines that were kept to fold others with them, and erase the state of the run."""
        self._print_kept()
        if self._footer is not None:
            self._footer.end()

    def _print_kept(self) -> None:
        self._print(map(self._fold_text, self._folding.rest()))

    def _without_bars(self, lines: Iterable[LogLines], footer: Footer) -> Iterator[LogLines]:
        """The lines, without the states of progress bars, of which the newest is shown below the lines."""
        for group in lines:
            source = group.node, group.rank
            if group.is_unfinished:
                self._bar_of = source
                footer.show_bar(printable(group.text))
                continue
            if source == self._bar_of and group.stream != "event":
                self._bar_of = None
                footer.show_bar("")
            yield group

    def _print(self, parts: Iterable[str]) -> None:
        texts, size = [], 0
        for part in parts:
            texts.append(part + "\n")
            size += len(texts[-1])
            if size >= PRINTED_CHARACTERS:
                self._print_text("".join(texts))
                texts, size = [], 0
        if texts:
            self._print_text("".join(texts))

    def _print_text(self, text: str) -> None:
        with self._above_footer():
            print_text(text, self._stream)

    def _text(self, lines: LogLines) -> str:
        if self._as_json:
            return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines.to_json())
        prefix = prefix_of(lines)
        if self._colour:
            colour = _AGENT_COLOUR if lines.rank is None else _COLOURS[lines.rank % len(_COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        return prefixed(lines, self._time_of(lines) + prefix)

    def _time_of(self, lines: LogLines) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(lines.time)) if self._timestamps else ""

    def _fold_text(self, fold: Fold) -> str:
        if fold.rank_count == 1:
            return self._text(fold.line)
        assert self._ranks_of is not None
        return prefixed(fold.line, self._time_of(fold.line) + fold.prefix(self._ranks_of))


class NodeOutput:
    """Prints lines of nodes; every node's prefix has its own colour."""

    def __init__(self) -> None:
        self._colour = has_colour(sys.stdout)

    def write(self, node: str, line: str) -> None:
        """Print a line; at once, so that several threads may."""
        prefix = f"[{node}]"
        if self._colour:
            prefix = f"\x1b[{_COLOURS[zlib.crc32(node.encode()) % len(_COLOURS)]}m{prefix}\x1b[0m"
        print_text(f"{prefix} {printable(line)}\n")

    def inform_of(self, nodes: Sequence[str], text: str) -> None:
        inform(f"{fold(nodes)}: {text}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, cut: Sequence[str] = ()) -> None:
    """Print a table: on a terminal in its width, if need be with the `cut` columns shortened."""
    cells = [["" if cell is None else without_controls(str(cell)) for cell in row] for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = table_lines(columns, cells, width, cut)
    if has_colour(sys.stdout):
        lines = map(with_coloured_cells, lines)
    print_text("".join(f"{line}\n" for line in lines))
