"""Stop a run on every node, and report what could not be ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from orchestrator.errors import LaunchError, RunLost
from orchestrator.launchers import launcher_for
from orchestrator.names.hostlist import fold
from orchestrator.node.ownership import signal_exactly
from orchestrator.plan.plan import GRACE_S
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder
from orchestrator.verdict import observe
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.launching import is_launching, remote_launch_host
from orchestrator.verdict.observe import Status
from orchestrator.verdict.settle import settle

CANCEL_S = 90.0  # a cancelled launch waits for its pending requests, then ends what had started
POLL_S = 0.05


def stop(folder: RunFolder, on_message: Callable[[str], None]) -> RunRecord:
    """
    Stop a run, and before that its launch if it is in progress; returns its record. A run that has ended is no error.

    Raises:
        LaunchError: some processes could not be ended, or may still be started.
        RunLost: the run's folders are gone, so its processes are not known.
    """
    record = _cancel_launch(folder, on_message)
    plan = folder.read_plan()
    launch_host = remote_launch_host(record)
    is_over = record.state.ended
    if not is_over:
        folder.request_stop()
    launcher = launcher_for(plan)
    try:
        left = launcher.stop(record.slurm_job, grace_s=GRACE_S)
        if left:
            raise LaunchError(
                f"run {record.id} is not known to be over everywhere\n  " + "\n  ".join(left),
                hint=f"orch stop {record.id} again once that is resolved",
            )
        if launch_host:
            raise LaunchError(
                f"run {record.id} may still be being launched on {launch_host}: what had started was ended, but not the launch",
                hint=f"orch stop {record.id} on {launch_host}; if that machine is gone, nothing more will start",
            )
        if not is_over:
            status = observe.observe_run(folder, plan, launcher, launcher.job_status(record.slurm_job))
            record = settle(folder, _verdict(record, status), status.nodes, attempt=status.attempt)
    finally:
        launcher.close()
    return record


def _cancel_launch(folder: RunFolder, on_message: Callable[[str], None]) -> RunRecord:
    """
    Cancel a launch in progress, as Ctrl-C in its terminal does; returns the record after that.

    Raises:
        LaunchError: its process cannot be signalled, or does not end.
    """
    record, deadline = folder.read(), time.monotonic() + CANCEL_S
    if record.launching is None or not is_launching(record):
        return record
    pid = record.launching["pid"]
    try:
        signal_exactly((pid, record.launching["start_time"]), signal.SIGTERM)
    except PermissionError as exc:
        raise LaunchError(
            f"run {record.id} is still being launched by pid {pid}, which belongs to another user"
        ) from exc
    on_message(f"run {record.id} is still being launched: pid {pid} was sent SIGTERM to cancel the launch")
    while is_launching(record):
        if time.monotonic() > deadline:
            raise LaunchError(
                f"run {record.id} is still being launched: pid {pid} has not ended {CANCEL_S:.0f} s after SIGTERM",
                hint=f"end that process, then orch stop {record.id} again",
            )
        time.sleep(POLL_S)
        record = folder.read()
    return record


def _verdict(record: RunRecord, status: Status) -> Verdict:
    alive = [node.node for node in status.nodes if node.alive]
    if alive:
        raise LaunchError(f"run {record.id} still runs on {fold(alive)}", hint=f"orch stop {record.id} again")
    if status.verdict.state is RunState.LOST and record.started:
        raise RunLost(
            f"run {record.id}: {status.verdict.message}; every process there with the run's environment variables was ended",
            hint="a process that had overwritten its environment (setproctitle does) may be left: search for it there",
        )
    if status.verdict.state.ended:
        return status.verdict
    return Verdict(RunState.STOPPED, message="stopped before every node had started")
