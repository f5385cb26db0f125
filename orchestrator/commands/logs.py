"""`orch logs`: the lines of all ranks of all nodes as one log, filtered; during the run and after it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.actions.durations import seconds
from orchestrator.actions.watch import WATCH_STOPPED, Keep, Watch
from orchestrator.console import LineWriter, say, say_error
from orchestrator.errors import NodeError, NodesError, RunNotFound, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.logs.lines import LogLines
from orchestrator.names.hostlist import expand
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RUN_ID, RunRecord, RunState
from orchestrator.store import KeptRun, PassingRun, Store, home


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines to show; None shows all."""

    nodes: str | None = None
    ranks: str | None = None
    pattern: str | None = None
    since: str | None = None
    stream: str | None = None


def logs(name: str, inventory: str | None, wanted: Filter, *, follow: bool, tail: int | None, as_json: bool) -> int:
    """Print the lines that are there; with `follow`, also those to come until the run ends."""
    run, launcher = _recorded(name) if inventory is None else _elsewhere(name, inventory)
    plan = run.read_plan()
    try:
        keep = _keep(wanted, plan, time.time())
        watch = Watch(run, launcher, LineWriter(as_json=as_json), keep)
        watch.past(tail=tail, unfinished=not follow)
        if follow:
            record = watch.to_end(stop_failed=False)
            say(f"run {record.id} is {record.state.value}")
    except KeyboardInterrupt:
        ask = f": orch status {plan.run_id}" if run.launched_here else ""
        say(f"stopped watching; the run goes on unless it has ended{ask}")
        return WATCH_STOPPED
    finally:
        launcher.close()
    return _missing(list(watch.lost.values()), plan)


def _recorded(name: str) -> tuple[KeptRun, Launcher]:
    try:
        folder = Store(home(os.environ)).find(name)
    except RunNotFound as exc:
        if RUN_ID.fullmatch(name):
            exc.hint = f"{exc.hint}; where it was not launched, orch logs {name} -i FILE finds it on its nodes"
        raise
    return folder, launcher_for(folder.read_plan())


def _elsewhere(run_id: str, given: str) -> tuple[KeptRun, Launcher]:
    """A run that was launched on another machine, found on the nodes of the inventory; a record here wins."""
    if not RUN_ID.fullmatch(run_id):
        hint = "as orch ssh-launch printed it: gpt-20261121-101500-ab12; names, prefixes and latest are for runs launched here"
        raise UsageError(f"with -i, RUN is the whole id of a run; {run_id!r} is none", hint=hint)
    if any(folder.path.name == run_id for folder in Store(home(os.environ)).all()):
        say(f"run {run_id} is recorded here, so its nodes are those of its record, and -i {given} was not read")
        return _recorded(run_id)
    from orchestrator.commands.inventory import load_inventory  # noqa: PLC0415  only where nothing is recorded
    from orchestrator.launchers.discovery import find_run  # noqa: PLC0415

    plan, launcher = find_run(load_inventory(given, None), run_id)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    nothing: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
    record = RunRecord(run_id, plan.launcher, RunState.RUNNING, "", started=True, **nothing)
    return PassingRun(record, plan), launcher


def _missing(failures: Sequence[NodeError], plan: LaunchPlan) -> int:
    """Say whose lines could not be had."""
    if not failures:
        return 0
    error = NodesError(failures, plan.node_count)
    say_error(error)
    return error.exit_code


def _keep(wanted: Filter, plan: LaunchPlan, now: float) -> Keep:
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
