"""`orch status`: refresh the record of a run and print its state."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.console import (
    ProgressLine,
    left_text,
    print_error,
    print_json,
    print_table,
    print_text,
    warn,
    without_controls,
)
from orchestrator.cli.failure import print_failure
from orchestrator.errors import NodeError, NodesError
from orchestrator.records.runs import find_run, is_sweep

if TYPE_CHECKING:
    from orchestrator.usecases.runs.refresh import NodeObservation, Refreshed


@click.command()
@options.run
@options.as_json
def status(run: str, *, as_json: bool) -> int:
    """Show the state of a run; ends with the run's exit code."""
    if is_sweep(run):
        from orchestrator.cli.sweep import sweep_status  # imports Slurm's modules

        return sweep_status(run, as_json=as_json)
    refreshed = _refreshed(run, as_json=as_json)
    exit_code = refreshed.record.exit_code
    if refreshed.missing is not None and refreshed.record.state.final:
        warn(str(refreshed.missing))
    elif refreshed.missing is not None:
        print_error(refreshed.missing)
        exit_code = refreshed.missing.exit_code  # although the other nodes are shown
    if as_json:
        _print_json(refreshed)
    else:
        _print(refreshed)
    return exit_code


def _failures(refreshed: Refreshed) -> Sequence[NodeError]:
    return refreshed.missing.failures if refreshed.missing else ()


def _print_json(refreshed: Refreshed) -> None:
    nodes = [asdict(node) for node in refreshed.nodes]
    missing = [{"node": failure.node, "reason": failure.reason} for failure in _failures(refreshed)]
    findings = [finding.to_json() for finding in refreshed.findings()]
    queue = None
    if refreshed.status is not None and refreshed.queue is not None:
        queue = asdict(refreshed.queue) | {"position": refreshed.status.position}
    answers = {"nodes": nodes, "missing": missing, "queue": queue, "findings": findings}
    print_json(refreshed.record.to_json() | answers)


def _print(refreshed: Refreshed) -> None:
    print_text(without_controls(_headline(refreshed)))
    print_failure(refreshed.record, sys.stdout)
    if warning := refreshed.not_being_ended() or refreshed.unsupervised():
        warn(warning)
    for text in refreshed.stopped_agents():
        warn(text)
    for finding in refreshed.findings():
        warn(str(finding))
    if refreshed.nodes:
        rows = [_row(node) for node in refreshed.nodes]
        rows += [(failure.node, None, "no answer", None, None, None) for failure in _failures(refreshed)]
        print_table(("NODE", "RANKS", "AGENT", "STEP", "PHASE", "SEEN"), rows)
        progress = [of_rank for node in refreshed.nodes for of_rank in node.progress.values()]
        for ready in sorted({str(of_rank["ready"]) for of_rank in progress if "ready" in of_rank}):
            print_text(f"{without_controls(ready)}\n")


def _refreshed(run: str, *, as_json: bool) -> Refreshed:
    """Query the run; if no node answers, print the state that is recorded before that error."""
    from orchestrator.usecases.runs.refresh import refresh

    folder = find_run(run)
    try:
        with ProgressLine() as progress:
            return refresh(folder, on_progress=progress.update, diagnoses=True)
    except NodesError:
        if not as_json:
            record = folder.read()
            print_text(f"{record.id}  {record.state.value} when its nodes last answered; none answers now\n")
        raise


def _headline(refreshed: Refreshed) -> str:
    record, queue = refreshed.record, refreshed.queue
    is_repeated_below = queue is not None and record.message == queue.why
    message = f"  {record.message}" if record.message and not is_repeated_below else ""
    lines = [f"{record.id}  {record.state.value}{message}"]
    if queue is not None and refreshed.job:
        lines.append(refreshed.job)
        if queue.partition:
            nodes = f"{queue.node_count} ({queue.nodes})" if queue.nodes else queue.node_count
            lines.append(f"partition {queue.partition}  nodes {nodes}  elapsed {queue.elapsed} of {queue.limit}")
    elif record.slurm_job:
        lines.append(f"Slurm job {record.slurm_job}")
    lines += [f"attempt {ended['attempt']} failed: {ended['message']}" for ended in record.attempts]
    if record.attempts:
        state = "is the last" if record.state.final else "has failed" if refreshed.waits else "runs"
        lines.append(f"attempt {record.attempt} {state}")
    if refreshed.waits:
        lines.append(refreshed.waits)
    if record.exit is not None:
        lines.append(f"first failure: {record.exit}")
    found = {"replicas": record.replicas, "slow": record.slow}
    lines += [f"{name}: {text}" for name, text in found.items() if text]
    lines += [left_text(record)] if record.left else []
    if record.tags:
        lines.append(f"tags: {', '.join(record.tags)}")
    if record.note:
        lines.append(f"note: {record.note}")
    if record.summary:
        lines.append("  ".join(f"{name}={value}" for name, value in record.summary.items()))
    return "\n".join(lines) + "\n"


def _row(node: NodeObservation) -> tuple[object, ...]:
    """The cells of the newest progress that a rank of the node reported; values that no rank reports are empty cells."""
    newest = max(node.progress.values(), key=lambda progress: _written_s(progress) or 0.0, default={})
    step, steps, written_s = newest.get("step"), newest.get("steps"), _written_s(newest)
    return (
        node.node,
        _ranges(sorted(int(rank) for rank in node.ranks)),
        _agent(node),
        step if steps is None else f"{step}/{steps}",
        newest.get("phase"),
        None if written_s is None else f"{max(0.0, time.time() - written_s):.0f} s ago",
    )


def _written_s(progress: Mapping[str, Any]) -> float | None:
    """When a program wrote its progress file, in seconds since the epoch; None if the file has no valid time."""
    try:
        return float(progress["time"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def _agent(node: NodeObservation) -> str:
    if node.finished is not None:
        return str(node.finished.state)
    if node.stopped:
        return "stopped"
    return "running" if node.alive else "not started" if node.agent is None else "gone"


def _ranges(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else "".join(map(str, ranks))
