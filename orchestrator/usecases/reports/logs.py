"""Find the run whose logs are shown, by its record or on the nodes, and select the lines to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from orchestrator.errors import LaunchError, NodesError, RunNotFound, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.logs.lines import LogLines, last
from orchestrator.logs.selection import Selection
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.run_folder import KeptRun, RunFolder, UnrecordedRun
from orchestrator.records.runs import find_run
from orchestrator.supervision.queries import MOST_LINES, lines_by_owner
from orchestrator.usecases.durations import seconds
from orchestrator.usecases.reports.log_reader import LogReader

BATCH_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter of the lines to show; None shows all."""

    nodes: str | None = None
    ranks: str | None = None
    pattern: str | None = None
    since: str | None = None
    stream: str | None = None


def recorded_run(name: str, on_progress: OnProgress = no_progress) -> tuple[KeptRun, Launcher]:
    """Return a run that is recorded here, and its launcher; RunNotFound if there is no such run, or more than one."""
    try:
        folder = find_run(name)
    except RunNotFound as exc:
        if RUN_ID.fullmatch(name):
            exc.hint = f"{exc.hint}; for a run launched on another machine: orch logs {name} -i FILE"
        raise
    return folder, launcher_for(folder.read_plan(), on_progress=on_progress)


def find_on_nodes(
    run_id: str, inventory: str, on_message: Callable[[str], None], on_warning: Callable[[str], None]
) -> tuple[KeptRun, Launcher]:
    """
    Find a run on the nodes of the inventory, unless it is recorded here with a plan that can be read.

    Raises:
        UsageError: `run_id` is not the complete id of a run.
        LaunchError: no reachable node has the run.
    """
    if not RUN_ID.fullmatch(run_id):
        hint = "as orch ssh-launch printed it: gpt-20261121-101500-ab12; names, prefixes and latest are for runs launched here"
        raise UsageError(f"with -i, RUN is the complete id of a run; {run_id!r} is not", hint=hint)
    with suppress(RunNotFound):  # it is not recorded here, or its plan is damaged
        recorded = recorded_run(run_id)
        on_message(
            f"run {run_id} is recorded here, so its nodes are taken from its record, and -i {inventory} was not read"
        )
        return recorded
    from orchestrator.launchers.discovery import find_run
    from orchestrator.usecases.inventory import load_inventory  # only if nothing is recorded here

    plan, launcher = find_run(load_inventory(inventory, None), run_id)
    for warning in plan.warnings:
        on_warning(warning)
    return UnrecordedRun.of(plan), launcher


def batch_log(launcher: Launcher, chosen: Selection, tail: int | None) -> Collection[LogLines]:
    """The wanted lines of the batch script's log under Slurm, which has the messages of Slurm; none if there is no log."""
    log = launcher.batch_log(BATCH_LOG_BYTES)
    if log is None or not log.text:
        return []
    lines = chosen.of(LogLines(log.written_s, "batch", None, "batch", log.text.rstrip("\n")))
    return [] if lines is None else last([lines], lines.count if tail is None else tail)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The wanted lines that are known although no node can be reached, and a remark about them."""

    lines: Collection[LogLines] = ()
    remark: str = ""
    is_newest: bool = False
    """The run's supervisor has read them now."""


def lines_without_nodes(run: KeptRun, error: NodesError, chosen: Selection, tail: int | None) -> Recorded:
    """The wanted lines if no node can be reached: those that the run's supervisor reads, else those in the record."""
    if not isinstance(run, RunFolder):
        return Recorded()

    def wanted(lines: Iterable[LogLines]) -> Collection[LogLines]:
        return last(filter(None, map(chosen.of, lines)), MOST_LINES if tail is None else tail)

    if read := wanted(lines_by_owner(run)):
        remark = f"{error}; the run's supervisor has read these lines, the last {MOST_LINES} at most"
        return Recorded(read, remark, is_newest=True)
    record, kept = run.read(), wanted([])
    if (exit_ := record.exit) is not None:  # the last lines of the rank that failed first
        ended_s = datetime.fromisoformat(record.ended or record.created).timestamp()
        kept = wanted([LogLines(ended_s, exit_.node, exit_.rank, "err", "\n".join(exit_.lines))])
    return Recorded(kept, f"{record.outcome}; these lines are in its record" if kept else record.outcome)


def missing_logs(run: KeptRun, plan: LaunchPlan, reader: LogReader) -> LaunchError | None:
    """
    The error that nodes have no log of a run that has started; None if all have one.

    None under Slurm, which decides when it starts, and for a run found on the nodes: the search names those without it.
    """
    missing = reader.nodes_without_files()
    if not missing or plan.by_scheduler or not run.is_recorded or not run.read().started:
        return None
    folders = sorted({plan.node_dir(node) for node in plan.nodes if node.name in missing})
    shown = ", ".join(folders[:2]) + (", …" if folders[2:] else "")
    message = f"the log on {fold(missing)} is gone, as is its folder: {shown}"
    return LaunchError(message, hint=f"orch status {plan.run_id} shows what is recorded here")


def selection(
    wanted: Filter, plan: LaunchPlan, now: float, *, has_routine: bool, has_rank_metrics: bool = True
) -> Selection:
    """
    The selection by the filter.

    Args:
        has_routine: with the events that every run has.
        has_rank_metrics: with the losses of single ranks, of which rank 0 prints the mean.

    Raises:
        UsageError: the filter does not fit the run.
    """
    nodes = node_names(wanted.nodes, plan)
    ranks = _ranks(wanted.ranks, plan)
    pattern = _pattern(wanted.pattern)
    if wanted.stream not in (None, "out", "err", "event", "batch"):
        raise UsageError(f"--stream {wanted.stream}: no such stream", hint="out, err, event or batch")
    earliest = now - seconds("--since", wanted.since) if wanted.since else None
    return Selection(
        nodes,
        ranks,
        wanted.stream,
        earliest,
        pattern,
        has_routine=has_routine or wanted.stream == "event",
        has_rank_metrics=has_rank_metrics,
    )


def node_names(text: str | None, plan: LaunchPlan) -> frozenset[str] | None:
    """The names in the value of --node, None for all; UsageError if it is no list of names, or the run has no such node."""
    if text is None:
        return None
    known = {node.name for node in plan.used_nodes}
    try:
        names = frozenset(expand(text))
    except ValueError as exc:
        raise UsageError(f"--node {text}: {exc}", hint="as in --node n0 or --node 'n[0-3]'") from exc
    if not names <= known and not plan.by_count:
        raise UsageError(f"--node {text}: the run has no such node", hint=f"its nodes: {', '.join(sorted(known))}")
    return names


def _ranks(text: str | None, plan: LaunchPlan) -> frozenset[int] | None:
    if text is None:
        return None
    if plan.program.per_node:
        message = f"--rank {text}: the output of a --per-node program is not divided by rank"
        raise UsageError(message, hint="use --node or --grep")
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text) is None:
        raise UsageError(f"--rank {text}: not a list of ranks", hint="as in --rank 3 or --rank 0-7,12")
    ranges = [[int(rank) for rank in part.split("-")] for part in text.split(",")]
    if any(bounds[0] > bounds[-1] or bounds[-1] >= plan.world_size for bounds in ranges):
        raise UsageError(f"--rank {text}: the run has ranks 0 to {plan.world_size - 1}")
    return frozenset(rank for bounds in ranges for rank in range(bounds[0], bounds[-1] + 1))


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as exc:
        raise UsageError(f"--grep {text!r} is not a regular expression: {exc}") from exc
