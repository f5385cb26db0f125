"""Show the logs of a run: the lines so far, and if it is followed those until its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from orchestrator.errors import NodesError, OrchError
from orchestrator.launchers.base import Launcher
from orchestrator.records.run_folder import KeptRun
from orchestrator.run import RunRecord
from orchestrator.usecases.launch.watch import Watch
from orchestrator.usecases.reports.log_reader import LogReader, Viewer
from orchestrator.usecases.reports.logs import Filter, batch_log, lines_without_nodes, missing_logs, selection


@dataclass(frozen=True, slots=True)
class Shown:
    """The outcome of show_logs."""

    record: RunRecord | None = None
    """The record of a run that was followed to its end."""
    errors: Sequence[OrchError] = ()
    """Why lines are missing."""


def show_logs(
    run: KeptRun,
    launcher: Launcher,
    view: Viewer,
    wanted: Filter,
    *,
    tail: int | None = None,
    follow: bool = False,
    has_routine: bool = False,
    has_rank_metrics: bool = True,
    is_live: bool = False,
    connecting: AbstractContextManager[object] | None = None,
) -> Shown:
    """
    Write the wanted lines to the view.

    Args:
        tail: only the last lines of those so far.
        follow: continue until the run ends.
        has_routine, has_rank_metrics: as of `selection`.
        is_live: as of LogReader.
        connecting: a context that is open while nodes are connected to.

    Raises:
        UsageError: the filter does not suit the run.
    """
    plan = run.read_plan()
    chosen = selection(wanted, plan, time.time(), has_routine=has_routine, has_rank_metrics=has_rank_metrics)
    if wanted.stream == "batch":
        view.write(batch_log(launcher, chosen, tail))
        return Shown()
    try:
        with connecting or nullcontext():
            reader = LogReader(launcher, plan, view, chosen, only_wanted_nodes=not follow, is_live=is_live)
    except NodesError as unreachable:
        found = lines_without_nodes(run, unreachable, chosen, tail)
        view.write(found.lines)
        if found.is_newest and not follow:
            view.warn(found.remark)
            return Shown()
        if found.remark:
            view.inform(found.remark)
        return Shown(errors=[unreachable])
    reader.past(tail=tail, unfinished=not follow)
    if not follow and not reader.has_every_agent and wanted == Filter():
        view.write(batch_log(launcher, chosen, tail))  # the job may have failed before it started that agent
    record = Watch(run, launcher, reader, view, ends_failed=False).to_end() if follow else None
    unread = NodesError(list(reader.unreadable.values()), reader.folder_count) if reader.unreadable else None
    return Shown(record, [error for error in (missing_logs(run, plan, reader), unread) if error is not None])
