"""`orch status` and `orch list`: how runs stand, asked of the nodes and written into their records."""

from __future__ import annotations

import os
import time
from typing import Any

from orchestrator import supervise
from orchestrator.console import harmless, print_json, print_table, print_text, say
from orchestrator.errors import NodesError, RunNotFound
from orchestrator.launchers import launcher_for
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder, Store, home
from orchestrator.supervise import Status
from orchestrator.transports.observed import NodeObservation


def status(run: str, *, as_json: bool) -> int:
    """Show one run; the exit code is the run's, 0 while it goes on."""
    folder = Store(home(os.environ)).find(run)
    record, found = refresh(folder)
    if as_json:
        print_json(record.to_json() | {"nodes": [_node_json(node) for node in found.nodes] if found else []})
        return record.exit_code
    print_text(harmless(_headline(record)))
    if _is_unsupervised(folder, record):
        say(f"warning: nobody supervises this run, and it goes on; `orch attach {record.id}` takes it up again")
    if found and found.nodes:
        print_table(("NODE", "RANKS", "AGENT", "STEP", "PHASE", "SEEN"), [_row(node) for node in found.nodes])
        for ready in sorted({str(p["ready"]) for node in found.nodes for p in node.progress.values() if "ready" in p}):
            print_text(f"{harmless(ready)}\n")
    return record.exit_code


def list_runs(*, as_json: bool) -> int:
    """Show all runs by their records, oldest first; the nodes are not asked."""
    records = []
    for folder in Store(home(os.environ)).all():
        try:
            records.append(folder.read())
        except RunNotFound as exc:
            say(f"warning: {exc}")
    if as_json:
        print_json([record.to_json() for record in records])
    else:
        rows = [
            (r.id, r.launcher, r.state.value, r.created[:19], (r.message or "").partition("\n")[0]) for r in records
        ]
        print_table(("RUN", "LAUNCHER", "STATE", "CREATED (UTC)", "MESSAGE"), rows)
    return 0


def refresh(folder: RunFolder) -> tuple[RunRecord, Status | None]:
    """Ask how a run stands and bring its record up to date; a launch that goes on or failed is taken by its record."""
    record = folder.read()
    failed_to_launch = record.state.final and record.state is not RunState.LOST and not record.started
    if failed_to_launch or supervise.launch_goes_on(record):
        return record, None
    plan = folder.read_plan()
    launcher = launcher_for(plan)
    try:
        found = supervise.observe(folder, plan, launcher, record.slurm_job)
    except NodesError as exc:
        if not record.state.final:
            raise
        say(f"warning: {exc}")  # the end is known, only the details are not
        return record, None
    finally:
        launcher.close()
    return supervise.settle(folder, found.verdict, found.nodes, attempt=found.attempt), found


def _is_unsupervised(folder: RunFolder, record: RunRecord) -> bool:
    """Slurm supervises its jobs itself."""
    goes_on = record.started and not record.state.final
    return goes_on and record.launcher == "ssh" and folder.supervisor() is None


def _headline(record: RunRecord) -> str:
    lines = [f"{record.id}  {record.state.value}" + (f"  {record.message}" if record.message else "")]
    if record.slurm_job:
        lines.append(f"Slurm job {record.slurm_job}")
    if record.exit is not None:
        lines.append(f"first failure: {record.exit}")
    if record.summary:
        lines.append("  ".join(f"{name}={value}" for name, value in record.summary.items()))
    return "\n".join(lines) + "\n"


def _row(node: NodeObservation) -> tuple[object, ...]:
    newest = max(node.progress.values(), key=lambda progress: float(progress["time"]), default=None)
    ranks = _ranges(sorted(int(rank) for rank in node.ranks))
    if newest is None:
        return node.node, ranks, _agent(node), None, None, None
    step = f"{newest['step']}/{newest['steps']}" if "steps" in newest else newest["step"]
    return node.node, ranks, _agent(node), step, newest["phase"], f"{max(0.0, time.time() - newest['time']):.0f} s ago"


def _agent(node: NodeObservation) -> str:
    if node.finished is not None:
        return str(node.finished.state)
    return "running" if node.alive else "not started" if node.agent is None else "gone"


def _ranges(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else "".join(map(str, ranks))


def _node_json(node: NodeObservation) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return asdict(node)
