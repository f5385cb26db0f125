"""The log of a run: where the run is recorded or found, and which of its lines are wanted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.actions.durations import seconds
from orchestrator.actions.log_reader import Keep
from orchestrator.errors import RunNotFound, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.logs.lines import LogLines
from orchestrator.names.hostlist import expand
from orchestrator.node.run_folder import RUN_ID
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RunRecord, RunState
from orchestrator.store import KeptRun, Store, UnrecordedRun, home


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines to show; None shows all."""

    nodes: str | None = None
    ranks: str | None = None
    pattern: str | None = None
    since: str | None = None
    stream: str | None = None


def recorded(name: str) -> tuple[KeptRun, Launcher]:
    """
    Return a run that is recorded here, and its launcher.

    Raises:
        RunNotFound: there is no such run, or more than one.
    """
    try:
        folder = Store(home(os.environ)).find(name)
    except RunNotFound as exc:
        if RUN_ID.fullmatch(name):
            exc.hint = f"{exc.hint}; where it was not launched, orch logs {name} -i FILE finds it on its nodes"
        raise
    return folder, launcher_for(folder.read_plan())


def found_on_nodes(
    run_id: str, inventory: str, on_notice: Callable[[str], None], on_warning: Callable[[str], None]
) -> tuple[KeptRun, Launcher]:
    """
    Find a run that is not recorded here on the nodes of the inventory; a record here wins.

    Raises:
        UsageError: this is not the id of a run.
        LaunchError: no node that can be reached has it.
    """
    if not RUN_ID.fullmatch(run_id):
        hint = "as orch ssh-launch printed it: gpt-20261121-101500-ab12; names, prefixes and latest are for runs launched here"
        raise UsageError(f"with -i, RUN is the whole id of a run; {run_id!r} is none", hint=hint)
    if any(folder.path.name == run_id for folder in Store(home(os.environ)).all()):
        on_notice(
            f"run {run_id} is recorded here, so its nodes are those of its record, and -i {inventory} was not read"
        )
        return recorded(run_id)
    from orchestrator.actions.inventory import load_inventory  # noqa: PLC0415  only where nothing is recorded
    from orchestrator.launchers.discovery import find_run  # noqa: PLC0415

    plan, launcher = find_run(load_inventory(inventory, None), run_id)
    for warning in plan.warnings:
        on_warning(warning)
    unknown: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
    record = RunRecord(run_id, plan.launcher, RunState.RUNNING, "", started=True, **unknown)
    return UnrecordedRun(record, plan), launcher


def keep_of(wanted: Filter, plan: LaunchPlan, now: float) -> Keep:
    """
    Return the function that selects the wanted lines.

    Raises:
        UsageError: the filter is wrong, or the run has no such node or rank.
    """
    nodes = _nodes(wanted.nodes, plan)
    ranks = _ranks(wanted.ranks, plan)
    pattern = _pattern(wanted.pattern)
    if wanted.stream not in (None, "out", "err", "event"):
        raise UsageError(f"--stream {wanted.stream}: no such stream", hint="out, err or event")
    earliest = now - seconds("--since", wanted.since) if wanted.since else None

    def keep(lines: LogLines) -> LogLines | None:
        wants = (
            (nodes is None or lines.node in nodes)
            and (ranks is None or lines.rank in ranks)
            and (wanted.stream is None or lines.stream == wanted.stream)
            and (earliest is None or lines.time >= earliest)
        )
        if not wants or pattern is None:
            return lines if wants else None
        found = [text for text in lines.text.split("\n") if pattern.search(text)]
        return replace(lines, text="\n".join(found)) if found else None

    return keep


def _nodes(text: str | None, plan: LaunchPlan) -> set[str] | None:
    if text is None:
        return None
    known = {node.name for node in plan.nodes}
    try:
        names = set(expand(text))
    except ValueError as exc:
        raise UsageError(f"--node {text}: {exc}", hint="as in --node n0 or --node 'n[0-3]'") from exc
    if not names <= known and not plan.by_count:
        raise UsageError(f"--node {text}: the run has no such node", hint=f"its nodes: {', '.join(sorted(known))}")
    return names


def _ranks(text: str | None, plan: LaunchPlan) -> set[int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text)
    if found is None:
        raise UsageError(f"--rank {text}: not a list of ranks", hint="as in --rank 3 or --rank 0-7,12")
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    if any(end[0] > end[-1] or end[-1] >= plan.world_size for end in ends):
        raise UsageError(f"--rank {text}: the run has ranks 0 to {plan.world_size - 1}")
    return {rank for end in ends for rank in range(end[0], end[-1] + 1)}


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as exc:
        raise UsageError(f"--grep {text!r} is not a regular expression: {exc}") from exc
