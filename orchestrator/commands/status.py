"""`orch status` and `orch list`: how runs stand, asked of the nodes and written into their records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import Any

from orchestrator.console import harmless, print_json, print_table, print_text, say
from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodeError, NodesError, OrchError, RunNotFound
from orchestrator.fanout import each
from orchestrator.launchers import launcher_for
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.job import SILENT, Queue
from orchestrator.launchers.slurm.poll import described
from orchestrator.launchers.slurm.queue import ask
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder, Store, home
from orchestrator.transports.terminal import Terminal
from orchestrator.verdict import observe
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.launching import launch_goes_on
from orchestrator.verdict.observe import Status
from orchestrator.verdict.settle import settle

REFRESHED_AT_ONCE = 8


def status(run: str, *, as_json: bool) -> int:
    """Show one run; the exit code is the run's, 0 while it goes on."""
    folder = Store(home(os.environ)).find(run)
    record, found = refresh(folder)
    if as_json:
        nodes = [asdict(node) for node in found.nodes] if found else []
        print_json(record.to_json() | {"nodes": nodes, "queue": _queue_json(found)})
        return record.exit_code
    print_text(harmless(_headline(record, found)))
    if warning := not_being_ended(folder, record, found):
        say(f"warning: {warning}")
    elif _is_unsupervised(folder, record):
        say(f"warning: nobody supervises this run, and it goes on; `orch attach {record.id}` takes it up again")
    if found and found.nodes:
        print_table(("NODE", "RANKS", "AGENT", "STEP", "PHASE", "SEEN"), [_row(node) for node in found.nodes])
        for ready in sorted({str(p["ready"]) for node in found.nodes for p in node.progress.values() if "ready" in p}):
            print_text(f"{harmless(ready)}\n")
    return record.exit_code


def list_runs(*, up_to_date: bool, as_json: bool) -> int:
    """Show all runs by their records, oldest first; with `up_to_date`, those that have not ended are asked after before."""
    if up_to_date:
        bring_up_to_date()
    records = [record for _, record in readable()]
    if as_json:
        print_json([record.to_json() for record in records])
    else:
        rows = [
            (r.id, r.launcher, r.state.value, r.created[:19], (r.message or "").partition("\n")[0]) for r in records
        ]
        print_table(("RUN", "LAUNCHER", "STATE", "CREATED (UTC)", "MESSAGE"), rows)
    return 0


def readable() -> Iterator[tuple[RunFolder, RunRecord]]:
    """All runs of which there is a record, oldest first; a damaged one is named."""
    for folder in Store(home(os.environ)).all():
        try:
            yield folder, folder.read()
        except RunNotFound as exc:
            say(f"warning: {exc}")


def bring_up_to_date() -> None:
    """The records of all runs that have not ended, with one question to Slurm for all of them."""
    going_on = [(folder, record) for folder, record in readable() if not record.state.final]
    terminal = Terminal()
    said = _said_by_slurm([(folder, record) for folder, record in going_on if record.launcher == "slurm"], terminal)
    done = each(going_on, lambda one: _brought_up_to_date(*one, said, terminal), limit=REFRESHED_AT_ONCE)
    for (_, record), trouble in zip(going_on, done, strict=True):
        if isinstance(trouble, OrchError):
            say(f"warning: {record.id}: {trouble}")


def _said_by_slurm(runs: Sequence[tuple[RunFolder, RunRecord]], terminal: Terminal) -> dict[str, Queue | None]:
    """One question wherever there is a Slurm; a login node that cannot be reached has said nothing."""
    plans: dict[str, LaunchPlan] = {}
    for folder, record in runs:
        with suppress(RunNotFound):  # who asks after that run by itself says so
            plans[record.id] = folder.read_plan()
    said: dict[str, Queue | None] = {}
    for login in {plan.slurm["login"] for plan in plans.values()}:
        jobs = {one.id: one.slurm_job for _, one in runs if one.id in plans and plans[one.id].slurm["login"] == login}
        with closing(slurm_host(plans[next(iter(jobs))], terminal)) as host:
            try:
                said |= ask(host.run, jobs)
            except NodeError as exc:
                say(f"warning: {exc}")
                said |= dict.fromkeys(jobs, Queue(SILENT, str(exc)))
    return said


def _brought_up_to_date(
    folder: RunFolder, record: RunRecord, said: Mapping[str, Queue | None], terminal: Terminal
) -> None:
    queue = said.get(record.id)
    if queue is None or not _tells_all(queue, record):
        refresh(folder, queue, terminal)
    elif queue.waits:
        settle(folder, Verdict(RunState.PENDING, message=queue.why or None), attempt=record.attempt)


def _tells_all(queue: Queue, record: RunRecord) -> bool:
    """Whether nobody has to look into the run's folder: the job waits, runs on, or nothing is known of it just now."""
    return queue.waits or queue.word in {SILENT, record.state.value}


def refresh(
    folder: RunFolder, said: Queue | None = None, terminal: Terminal | None = None
) -> tuple[RunRecord, Status | None]:
    """
    Ask how a run stands and bring its record up to date; a launch that goes on or failed is taken by its record.

    Args:
        said: What the scheduler says, if it was asked already.
        terminal: Where it asks what a login asks.
    """
    record = folder.read()
    failed_to_launch = record.state.final and record.state is not RunState.LOST and not record.started
    if failed_to_launch or launch_goes_on(record):
        return record, None
    plan = folder.read_plan()
    launcher = launcher_for(plan, terminal)
    try:
        queue = said or launcher.queue(record.slurm_job)
        found = observe.observe(folder, plan, launcher, queue)
        if queue is not None and queue.waits:
            found = replace(found, position=launcher.position(queue))
    except NodesError as exc:
        if not record.state.final:
            raise
        say(f"warning: {exc}")  # the end is known, only the details are not
        return record, None
    finally:
        launcher.close()
    verdict = observe.as_seen(plan, found.verdict, found.nodes)
    return settle(folder, verdict, found.nodes, attempt=found.attempt), found


def _is_unsupervised(folder: RunFolder, record: RunRecord) -> bool:
    """Slurm supervises its jobs itself."""
    goes_on = record.started and not record.state.final
    return goes_on and record.launcher == "ssh" and folder.supervisor() is None


def not_being_ended(folder: RunFolder, record: RunRecord, found: Status | None) -> str:
    """The warning that a run has failed and nobody ends what is left of it, or nothing."""
    if found is None or record.state.final:
        return ""
    left = observe.may_still_run(folder.read_plan(), found.verdict, found.nodes)
    return observe.not_being_ended(folder, record.id, left)


def _headline(record: RunRecord, found: Status | None) -> str:
    queue = found.queue if found else None
    is_said_below = queue is not None and record.message == queue.why
    lines = [
        f"{record.id}  {record.state.value}" + (f"  {record.message}" if record.message and not is_said_below else "")
    ]
    if found and queue is not None and queue.job:
        lines.append(described(queue, found.position))
        lines.append("  ".join(f"{name} {value}" for name, value in _facts(queue)))
    elif record.slurm_job:
        lines.append(f"Slurm job {record.slurm_job}")
    if record.exit is not None:
        lines.append(f"first failure: {record.exit}")
    if record.summary:
        lines.append("  ".join(f"{name}={value}" for name, value in record.summary.items()))
    return "\n".join(lines) + "\n"


def _facts(queue: Queue) -> Iterator[tuple[str, str]]:
    yield "partition", queue.partition
    nodes = f"{queue.node_count} ({queue.nodes})" if queue.nodes else queue.node_count
    yield "nodes", nodes
    yield "elapsed", f"{queue.elapsed} of {queue.limit}"


def _queue_json(found: Status | None) -> dict[str, Any] | None:
    """What Slurm says of the job; the names are those of docs/commands.md."""
    if found is None or found.queue is None:
        return None
    fields = asdict(found.queue)
    return {"state": fields.pop("word")} | fields | {"position": found.position}


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
