"""The screen of a run that is followed to its end, for ssh-launch, submit and attach."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.console import LogView, inform, left_text, print_error, warn
from orchestrator.cli.result import print_result
from orchestrator.errors import CLOSED_PIPE, CTRL_C, LaunchError
from orchestrator.run import RunRecord, RunState

if TYPE_CHECKING:
    from orchestrator.launch.planned import Launched  # at run time it would load what only a launch needs
    from orchestrator.usecases.launch_arguments import WatchedLines
    from orchestrator.usecases.owner.viewer import Owner
    from orchestrator.usecases.reports.log_reader import Viewer


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
