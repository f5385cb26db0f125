"""The screen of a run that is followed to its end, for ssh-launch, submit and attach: its lines, its results and the next commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.cli.console import LogView, inform, left_text, print_error, warn, without_controls
from orchestrator.cli.numbers import number_text
from orchestrator.errors import CLOSED_PIPE, CTRL_C, LaunchError
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.launch.planned import Launched  # at run time it would load what only a launch needs
    from orchestrator.usecases.launch_arguments import WatchedLines
    from orchestrator.usecases.owner.viewer import Owner
    from orchestrator.usecases.reports.log_reader import Viewer

LABEL = 12  # characters; as print_failure


def watch(launched: Launched, lines: WatchedLines, *, tail: int | None = None, stream: TextIO | None = None) -> int:
    """Follow a run that this process has launched or attached to, and print its outcome; return its exit code."""
    watched = WatchedRun(launched, lines, tail=tail)
    return show(launched.folder.path.name, watched, lines, stream=stream)


class WatchedRun:
    """A run that this process follows to its end, and diagnoses if it has failed."""

    def __init__(self, launched: Launched, lines: WatchedLines, *, tail: int | None = None) -> None:
        """Prepare to show all lines, or from the last `tail` of those so far."""
        self._folder, self._launcher, self._lines, self._tail = launched.folder, launched.launcher, lines, tail

    def to_end(self, view: Viewer) -> RunRecord:
        from orchestrator.usecases.launch.watch import Watch, watched_lines  # as above
        from orchestrator.usecases.reports.log_reader import LogReader  # the viewer of a run over SSH needs none of it

        selection = watched_lines(quiet=self._lines.quiet, all_ranks=self._lines.all_ranks)
        reader = LogReader(self._launcher, self._folder.read_plan(), view, selection, is_live=self._lines.is_live)
        if self._tail is not None:
            reader.past(tail=self._tail, unfinished=False)
        return Watch(self._folder, self._launcher, reader, view, ends_failed=True).to_end()

    def diagnosed(self, on_warning: Callable[[str], None]) -> RunRecord | None:
        from orchestrator.usecases.diagnose.failure import diagnose_failure  # only if the run has failed

        return diagnose_failure(self._folder, self._launcher, on_warning)


def show(run_id: str, watched: WatchedRun | Owner, lines: WatchedLines, *, stream: TextIO | None = None) -> int:
    """
    Show a run to its end, and print its outcome; return its exit code.

    Args:
        lines: if `quiet`, print only the lines of ranks, warnings, and the outcome of a run that is not done.
        stream: for the lines; by default stdout.
    """
    view = LogView(
        as_json=False,
        quiet=lines.quiet,
        stream=stream,
        ranks_of=_ranks_of(run_id) if lines.fold else None,
        timestamps=lines.timestamps,
        is_live=lines.is_live,
    )
    stopped = f"stopped watching; the run continues. `orch logs -f {run_id}` watches again"
    view.inform(f"run {run_id} started; Ctrl-C stops watching, the run continues")
    try:
        with closing(view):
            record = watched.to_end(view)
    except KeyboardInterrupt:
        inform(f"{stopped}, `orch stop {run_id}` ends it")
        return CTRL_C
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is closed; what is still buffered must go somewhere
        inform(f"nobody reads the output any more; the run continues: `orch logs -f {run_id}`")
        return CLOSED_PIPE
    except LaunchError as exc:
        print_error(exc)
        inform(f"{stopped}, `orch status {run_id}` shows its state")
        return exc.exit_code
    if record.exit_code:
        inform(record.outcome)
    else:
        view.inform(record.outcome)
    diagnosed = None
    if record.state is RunState.FAILED:
        from orchestrator.cli.failure import print_failure  # only if a run has failed

        with suppress(KeyboardInterrupt):  # Ctrl-C skips the diagnosis
            if diagnosed := watched.diagnosed(warn):
                print_failure(diagnosed)
    if not lines.quiet:
        print_result(record, view.loss_text(record), is_diagnosed=diagnosed is not None)
        if record.left:
            inform(left_text(record))
    return record.exit_code


def _ranks_of(run_id: str) -> Callable[[str], int] | None:
    """The number of ranks of each node, to fold lines; None for a run with one rank, whose lines need not wait for others."""
    from orchestrator.records.runs import find_run  # only to fold lines

    plan = find_run(run_id).read_plan()
    return plan.rank_counts() if plan.world_size > 1 else None


def print_result(record: RunRecord, loss: str, *, is_diagnosed: bool) -> None:
    """Print the results of a run that is done, and the next commands, on stderr; `is_diagnosed`: the failure has been explained above."""
    lines = result_lines(record, loss, is_diagnosed=is_diagnosed)
    text = "".join(f"{without_controls(line).rstrip()}\n" for line in lines)
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def result_lines(record: RunRecord, loss: str, *, is_diagnosed: bool) -> list[str]:
    """The lines of print_result; `loss` is its course as a sparkline, empty if it is unknown."""
    values = [*_results(record.summary, loss), *_next(record, is_diagnosed=is_diagnosed)]
    return [f"{label:<{LABEL}}{value}" for label, value in values]


def _results(summary: dict[str, Any], loss: str) -> Iterator[tuple[str, str]]:
    if (steps := summary.get("steps")) is not None:
        yield "steps", number_text(steps)
    first, last = summary.get("first_loss"), summary.get("last_loss")
    if loss:
        yield "loss", loss
    elif first is not None and last is not None:
        yield "loss", f"{number_text(first)}, at the end {number_text(last)}"
    rates = [(summary.get(f"{unit}_per_s"), f"{unit}/s") for unit in ("tokens", "samples")]
    step_s, slow_s = summary.get("step_time_p50_s"), summary.get("step_time_p99_s")
    speed = [f"{number_text(rate)} {unit}" for rate, unit in rates if rate is not None]
    if step_s is not None:
        slowest = f" (p99 {number_text(slow_s)} s)" if slow_s is not None else ""
        speed.append(f"{number_text(step_s)} s/step{slowest}")
    if (mfu := summary.get("mfu")) is not None:
        speed.append(f"MFU {number_text(mfu)}")
    if speed:
        yield "speed", ", ".join(speed)
    if isinstance(wall_s := summary.get("wall_s"), int | float):
        yield "time", clock(wall_s)


def _next(record: RunRecord, *, is_diagnosed: bool) -> Iterator[tuple[str, str]]:
    if record.state is RunState.DONE:
        files = next(iter([str(record.summary.get("checkpoint") or ""), *record.left]), "")
        if files:
            yield "files", files
        yield "next", f"orch stats {record.id}"
        if files:
            yield "", f"orch cp {record.id}:{files.rpartition(f'/{record.id}/')[2]} DIR"
    elif record.state in (RunState.FAILED, RunState.LOST) and record.started:
        if not is_diagnosed:
            yield "next", f"orch diagnose {record.id}"
        yield "", f"orch logs {record.id} --tail 50"
