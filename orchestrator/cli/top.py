"""`orch top`: a run on a full screen, refreshed until the user leaves or the run ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, has_colour, inform, print_error, print_json, print_text
from orchestrator.cli.screen import Screen
from orchestrator.cli.top_frame import Row, Selection, frame, press, rows
from orchestrator.errors import CTRL_C, NodesError, OrchError, UsageError
from orchestrator.records.runs import find_run
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.usecases.runs.look import Look, Looks

LOOK_S = 2.0  # between the end of a look and the next one
DRAW_S = 0.25  # between two frames
OLD_S = 6.0  # from which on the age of the last look is shown
LINES = 200  # of a log
OTHER_LINES = 24  # than those of nodes, in a frame that no terminal limits


@click.command()
@options.run
@click.option("--once", is_flag=True, help="Print one frame, also without a terminal.")
@options.as_json
def top(run: str, *, once: bool, as_json: bool) -> int:
    """Show a run live: its verdict, step and loss, and its nodes, ranks and cards, those first that hold up the others."""
    from orchestrator.usecases.runs.look import Looks

    folder = find_run(run)
    looks = Looks(folder)
    if as_json:
        print_json(looks.look().overview.to_json())
        return 0
    if once:
        with ProgressLine() as progress:
            look = looks.look(progress.update)
        size = shutil.get_terminal_size()
        height = size.lines if sys.stdout.isatty() else len(look.overview.nodes) + OTHER_LINES
        selection = Selection(colour=has_colour(sys.stdout), has_keys=False)
        print_text("\n".join(frame(look.overview, size.columns, height, selection)) + "\n")
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("orch top needs a terminal", hint=f"orch top {run} --once, or --json")
    with ProgressLine() as progress:
        first = looks.look(progress.update)  # logins may prompt
    live = Live(looks, first)
    try:
        with Screen(sys.stdout, sys.stdin.fileno()) as screen:
            View(live, screen, folder.path.name).run()
    except EOFError:  # the terminal is gone
        return 0
    except KeyboardInterrupt:
        return _left(live.look, CTRL_C)
    return _left(live.look, 0)


def _left(look: Look, code: int) -> int:
    """Report that the run is not affected."""
    if look.overview.is_over:
        inform(look.refreshed.record.outcome)
    else:
        inform(f"stopped watching; run {look.overview.id} continues: `orch logs -f {look.overview.id}`")
    return code


class Live:
    """Looks at a run in another thread: a node that does not answer must not stop the keys."""

    def __init__(self, looks: Looks, first: Look) -> None:
        self._looks = looks
        self.look = first
        self.at_s = time.monotonic()
        self.problem = ""
        """Why the last look failed."""
        self._wanted = threading.Event()
        threading.Thread(target=self._work, name="looks", daemon=True).start()

    def refresh(self) -> None:
        self._wanted.set()

    def _work(self) -> None:
        lasted_s = 0.0
        while True:
            # without a supervisor, each look logs in to all nodes
            self._wanted.wait(None if self.look.overview.is_over else max(LOOK_S, lasted_s))
            self._wanted.clear()
            begun_s = time.monotonic()
            try:
                self.look = self._looks.look(may_prompt=False)
                self.at_s, self.problem = time.monotonic(), ""
            except OrchError as error:  # the record is gone, or cannot be read now
                self.problem = str(error)
            lasted_s = time.monotonic() - begun_s


@dataclass(slots=True)
class View:
    """The screen, and what its keys do."""

    live: Live
    screen: Screen
    run_id: str
    selection: Selection = field(default_factory=lambda: Selection(colour=has_colour(sys.stdout)))
    _drawn: object = None
    """The look, selection, note and size of the last frame."""

    def run(self) -> None:
        """Draw and take keys until the user leaves."""
        drawn_s = 0.0
        while True:
            left_s = drawn_s + DRAW_S - time.monotonic()
            if left_s <= 0:
                self.draw()
                drawn_s, left_s = time.monotonic(), DRAW_S
            for key in self.screen.keys(left_s):
                if key == "q":
                    return
                self.press(key)

    def draw(self) -> None:
        """Draw if anything has changed."""
        old_s = time.monotonic() - self.live.at_s
        note = self.selection.note or self.live.problem
        if not note and old_s > OLD_S and not self.live.look.overview.is_over:
            note = f"the nodes were last queried {clock(old_s)} ago"
        found = self.live.look.overview
        state = (id(found), self.selection, note, self.screen.size)
        if state != self._drawn or self.screen.is_blank:
            self._drawn = state
            self.screen.draw(frame(found, *self.screen.size, replace(self.selection, note=note)))

    def press(self, key: str) -> None:
        listed = rows(self.live.look.overview, self.selection.open)
        row = listed[min(self.selection.row, len(listed) - 1)] if listed else None
        if self.selection.is_question:
            self.selection = replace(self.selection, is_question=False, note="")
            if key == "y":
                self._show("stop", self.run_id)
        elif key == "x":
            question = f"stop run {self.run_id} on all nodes? y: yes, another key: no"
            self.selection = replace(self.selection, is_question=True, note=question)
        elif key == "l":
            chosen = [] if row is None else ["--node", row.node] if row.rank is None else ["--rank", str(row.rank)]
            self._show("logs", self.run_id, "--tail", str(LINES), *chosen)
        elif key == "d":
            self._show("diagnose", self.run_id)
        elif key == "s" and row is not None:
            self._show_stacks(row)
        else:
            self.selection = press(self.selection, key, listed)

    def _show(self, *words: str) -> None:
        """Run a command of orch on the usual screen; Ctrl-C ends it alone."""
        with self.screen.suspended():
            try:
                subprocess.run([sys.executable, "-m", "orchestrator", *words], check=False)
                _wait_for_enter()
            except KeyboardInterrupt:
                print_text("\n")
        self.live.refresh()

    def _show_stacks(self, row: Row) -> None:
        """Show the stacks of the marked rank, or of all ranks of the node, as they are now."""
        from orchestrator.usecases.runs.look import stacks

        with self.screen.suspended():
            try:
                for rank, text in stacks(self.run_id, row.node).items():
                    if row.rank in (None, rank):
                        shown = text or "it does not answer: it is stopped, or a call holds its interpreter lock"
                        print_text(f"rank {rank} on {row.node}\n{shown}\n\n")
                _wait_for_enter()
            except (NodesError, OrchError) as error:
                print_error(error)
                _wait_for_enter()
            except KeyboardInterrupt:
                print_text("\n")


def _wait_for_enter() -> None:
    print_text("\n-- Enter: back to orch top -- ")
    sys.stdin.readline()
