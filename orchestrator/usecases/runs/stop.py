"""Stop a run on every node, and report what could not be ended."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace

from orchestrator.errors import LaunchError, RunLost, RunNotFound, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.node.number_text import counted
from orchestrator.node.run.ownership import signal_exactly
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.plan.plan import GRACE_S
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import KeptRun, RunFolder, UnrecordedRun
from orchestrator.records.runs import all_runs, find_run, read_runs, runs_named
from orchestrator.run import RunRecord, RunState
from orchestrator.supervision.queries import stop_by_owner
from orchestrator.usecases.reports.logs import find_on_nodes
from orchestrator.verdict import observe
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.last_lines import with_last_lines
from orchestrator.verdict.launching import is_launching, remote_launch_host
from orchestrator.verdict.observe import Status
from orchestrator.verdict.record_outcome import record_outcome_if_writable

CANCEL_S = 90.0  # a cancelled launch waits for its pending requests, then ends what had started
POLL_S = 0.05
RECORDED_S = 15.0  # for the owner of a run that it has ended
MOST_LISTED = 20


class SeveralRuns(UsageError):
    """More than one run could be meant; `choices` are their ids and descriptions, a sweep as one."""

    def __init__(self, message: str, choices: Sequence[tuple[str, str]]) -> None:
        lines = [f"  orch stop {name}   {described}" for name, described in choices]
        if len(lines) > MOST_LISTED:
            lines[MOST_LISTED:] = [f"  and {len(lines) - MOST_LISTED} more, see orch list"]
        hint = (
            "--all ends all runs recorded here; these states are recorded ones, and `orch list --all` queries the runs"
        )
        super().__init__("\n".join([f"{message}, so name the one to end:", *lines]), hint=hint)
        self.choices = choices


def run_to_stop(name: str | None) -> RunFolder:
    """
    The run of this name; without a name the only run that has not ended. If all have ended, the newest.

    Raises:
        SeveralRuns: several of them have not ended.
        RunNotFound: there is no such run.
    """
    if name is None:
        unended = unended_runs()
    else:
        named = [run for run in runs_named(name) if not run[1].state.ended]
        alive = [run for run in named if not run[1].state.final]
        unended = read_runs(alive or named)  # those that are LOST only if there are no others
    if len(unended) > 1:
        called = "" if name is None else f" called {name}"
        raise SeveralRuns(f"{len(unended)} runs{called} have not ended", _choices(unended))
    if unended:
        return unended[0][0]
    if name is not None:
        try:
            return find_run(name)
        except RunNotFound as exc:
            if RUN_ID.fullmatch(name):
                exc.hint = f"{exc.hint}; without a record here: orch stop {name} -i FILE"
            raise
    return find_run("latest")


def has_ended(folder: RunFolder) -> bool:
    """Return whether the run has ended by its record."""
    try:
        return folder.read().state.ended
    except RunNotFound:  # a damaged record
        return False


def unended_runs() -> list[tuple[RunFolder, RunRecord]]:
    """The runs that have not ended by their records, oldest first."""
    return read_runs([(folder, entry) for folder, entry in all_runs()[0] if not entry.state.final])


def _choices(runs: Sequence[tuple[RunFolder, RunRecord]]) -> list[tuple[str, str]]:
    """The id and description of each run, newest first, then of each sweep as a whole."""
    sweeps = Counter(record.sweep for _, record in runs if record.sweep)
    alone = [(record.id, _described(folder, record)) for folder, record in reversed(runs) if not record.sweep]
    return alone + [(sweep, f"{count} runs of a sweep") for sweep, count in sweeps.items()]


def _described(folder: RunFolder, record: RunRecord) -> str:
    """State, nodes and start of a run in one line."""
    try:
        plan = folder.read_plan()
        nodes = counted(plan.node_count, "node") if plan.by_count else fold(node.name for node in plan.nodes)
    except RunNotFound:
        nodes = "nodes unknown"
    return f"{record.state.value}, {nodes}, started {record.created[:19].replace('T', ' ')} UTC"


def stop(folder: RunFolder, on_message: Callable[[str], None]) -> RunRecord:
    """
    Stop a run, and before that its launch if it is in progress; returns its record. A run that has ended is no error.

    If the record cannot be read, the run is ended by its plan.

    Raises:
        LaunchError: some processes could not be ended, or may still be started.
        RunLost: the run's folders are gone, so its processes are not known, and no owner has recorded its end.
        RunNotFound: neither the record nor the plan can be read.
    """
    run: KeptRun = folder
    try:
        record = cancel_launch(folder, on_message)
    except RunNotFound as exc:
        run = UnrecordedRun.of(folder.read_plan())
        record = run.read()
        on_message(f"{exc}; the run is ended by its plan")
    if record.state.ended and not record.started:  # the launch failed, and has stopped what it had started
        return record
    if not record.state.ended:
        with suppress(OSError):  # on a full disk: the run may then end as FAILED, by a signal
            folder.request_stop()  # before the plan is read: no later attempt starts
    if run is folder:
        if ended := _end_by_owner(folder, record):
            return ended
        if _is_restarting(folder):
            record = _wait_for_restart(folder)
            if not record.state.ended and (ended := _end_by_owner(folder, record)):
                return ended
    with closing(launcher_for(folder.read_plan())) as launcher:
        return _end(run, record, launcher, on_message)


def stop_on_nodes(
    run_id: str | None, inventory: str, on_message: Callable[[str], None], on_warning: Callable[[str], None]
) -> RunRecord:
    """
    Stop a run that has no usable record here, found on the nodes of the inventory; returns its record.

    Without `run_id`, stop the only run with living processes there.

    Raises:
        UsageError: `run_id` is not the complete id of a run; or it is not given, and several runs are alive, or none.
        LaunchError: no reachable node has the run; or as from `stop`.
    """
    run, launcher = find_on_nodes(run_id or _active_run(inventory), inventory, on_message, on_warning)
    with closing(launcher):
        if not isinstance(run, RunFolder):
            return _end(run, run.read(), launcher, on_message)
    return stop(run, on_message)


def _active_run(inventory: str) -> str:
    """The only run with living processes on the nodes of the inventory."""
    from orchestrator.launchers.discovery import active_runs
    from orchestrator.usecases.inventory import load_inventory  # slow, and needed only here

    found = active_runs(load_inventory(inventory, None))
    if not found:
        raise RunNotFound(f"no run has a living process on the nodes of {inventory}")
    if len(found) > 1:
        lines = [f"  orch stop {run} -i {inventory}   {fold(nodes)}" for run, nodes in found.items()]
        raise UsageError("\n".join([f"{len(found)} runs are alive there, so name the one to end:", *lines]))
    return next(iter(found))


def _end(run: KeptRun, record: RunRecord, launcher: Launcher, on_message: Callable[[str], None]) -> RunRecord:
    _require_stopped(record, launcher.stop(record.slurm_job, grace_s=GRACE_S))
    if launch_host := remote_launch_host(record):
        text = f"run {record.id} may still be being launched on {launch_host}: what had started was ended, but not the launch"
        hint = f"orch stop {record.id} on {launch_host}; if that machine is gone, nothing more will start"
        raise LaunchError(text, hint=hint)
    if record.state.ended:
        return record
    status = observe.observe_run(run, launcher.plan, launcher, launcher.job_status(record.slurm_job))
    if status.verdict.state is RunState.LOST and isinstance(run, RunFolder) and (ended := _recorded_by_owner(run)):
        return ended
    is_owned_restart = status.attempt > 1 and run.supervisor() is not None  # its agents need not have been started
    verdict = with_last_lines(_verdict(record, status, may_be_lost=not is_owned_restart), launcher, status.attempt)
    record, unwritten = record_outcome_if_writable(run, verdict, status.nodes, attempt=status.attempt)
    if unwritten:
        once = "`orch status` writes it once there is space"
        on_message(f"nothing of run {record.id} is left running, but {unwritten}; {once}")
    return record


def _end_by_owner(folder: RunFolder, record: RunRecord) -> RunRecord | None:
    """Let the owner of the run end it over its connections, and wait for the record; None if the owner does not."""
    stopped = stop_by_owner(folder)
    if stopped is None:
        return None
    left = [*stopped.left]
    if stopped.silent:  # some may have returned just now
        plan = folder.read_plan()
        silent = tuple(node for node in plan.nodes if node.name in stopped.silent)
        with closing(launcher_for(replace(plan, nodes=silent))) as launcher:
            left += launcher.stop(None, grace_s=GRACE_S)
    _require_stopped(record, left)
    return _recorded_by_owner(folder)


def _recorded_by_owner(folder: RunFolder) -> RunRecord | None:
    """Wait until the owner of a run whose processes have ended has recorded its end; None if it does not, or there is no owner."""
    deadline = time.monotonic() + RECORDED_S
    while not (record := folder.read()).state.ended:
        if folder.supervisor() is None or time.monotonic() > deadline:
            record = folder.read()  # its last act
            break
        time.sleep(POLL_S)
    return record if record.state.ended else None


def _is_restarting(folder: RunFolder) -> bool:
    """True if the owner prepares another attempt; it answers no query meanwhile."""
    record = folder.read()
    return record.state is RunState.STARTING and record.attempt > 1 and folder.supervisor() is not None


def _wait_for_restart(folder: RunFolder) -> RunRecord:
    """Wait until the owner has seen the request to stop, or supervises the attempt that it had just started; returns the record."""
    deadline = time.monotonic() + CANCEL_S
    while _is_restarting(folder) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return folder.read()


def _require_stopped(record: RunRecord, left: Sequence[str]) -> None:
    if left:
        message = "\n  ".join([f"run {record.id} is not known to be over everywhere", *left])
        raise LaunchError(message, hint=f"orch stop {record.id} again once that is resolved")


def cancel_launch(folder: RunFolder, on_message: Callable[[str], None]) -> RunRecord:
    """Cancel a launch in progress, as Ctrl-C does, and return its record; LaunchError if its process cannot be signalled or ended."""
    record = folder.read()
    if record.launching is None or not is_launching(record):
        return record
    pid = record.launching["pid"]
    try:
        signal_exactly((pid, record.launching["start_time"]), signal.SIGTERM)
    except PermissionError as exc:
        message = f"run {record.id} is still being launched by pid {pid}, which belongs to another user"
        raise LaunchError(message) from exc
    on_message(f"run {record.id} is still being launched: pid {pid} was sent SIGTERM to cancel the launch")
    return wait_for_launch(folder)


def wait_for_launch(folder: RunFolder) -> RunRecord:
    """Wait until a cancelled launch has ended, and return its record; LaunchError if its process does not end."""
    deadline = time.monotonic() + CANCEL_S
    while is_launching(record := folder.read()):
        if time.monotonic() > deadline:
            pid = record.launching["pid"] if record.launching else None
            message = f"run {record.id} is still being launched: pid {pid} has not ended {CANCEL_S:.0f} s after SIGTERM"
            raise LaunchError(message, hint=f"end that process, then orch stop {record.id} again")
        time.sleep(POLL_S)
    return record


def _verdict(record: RunRecord, status: Status, *, may_be_lost: bool) -> Verdict:
    alive = [node.node for node in status.nodes if node.alive]
    if alive:
        raise LaunchError(f"run {record.id} still runs on {fold(alive)}", hint=f"orch stop {record.id} again")
    is_lost = status.verdict.state is RunState.LOST
    if is_lost and record.started and may_be_lost:
        text = f"run {record.id}: {status.verdict.message}; every process there with the run's environment variables was ended"
        hint = "a process that had overwritten its environment (setproctitle does) may be left: search for it there"
        raise RunLost(text, hint=hint)
    if status.verdict.state.ended and (may_be_lost or not is_lost):
        return status.verdict
    return Verdict(RunState.STOPPED, message="stopped before every node had started")
