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

GIVE_UP_S = 90.0  # a launch waits for the nodes that it has just queried, then takes back what had started
POLL_S = 0.05


def stop(folder: RunFolder, on_notice: Callable[[str], None]) -> RunRecord:
    """
    Stop the run, first its launch; stopping one that has ended is no error. Returns its record.

    Raises:
        LaunchError: something of it could not be ended, or may still be started.
        RunLost: its folders are gone, so nobody knows what to end.
    """
    record = _launch_ended(folder, on_notice)
    plan = folder.read_plan()
    elsewhere = remote_launch_host(record)
    over = record.state.final and record.state is not RunState.LOST
    if not over:
        folder.request_stop()
    launcher = launcher_for(plan)
    try:
        left = launcher.stop(record.slurm_job, grace_s=GRACE_S)
        if left:
            raise LaunchError(
                f"run {record.id} is not known to be over everywhere\n  " + "\n  ".join(left),
                hint=f"orch stop {record.id} again once that is resolved",
            )
        if elsewhere:
            raise LaunchError(
                f"run {record.id} may still be being launched on {elsewhere}: what had started was ended, but not the launch",
                hint=f"orch stop {record.id} on {elsewhere}; if that machine is gone, nothing more will start",
            )
        if not over:
            status = observe.observe_run(folder, plan, launcher, launcher.job_status(record.slurm_job))
            record = settle(folder, _verdict(record, status), status.nodes, attempt=status.attempt)
    finally:
        launcher.close()
    return record


def _launch_ended(folder: RunFolder, on_notice: Callable[[str], None]) -> RunRecord:
    """
    Make the process that is still launching the run give up, as Ctrl-C does; returns the record after that.

    Raises:
        LaunchError: it cannot be signalled, or does not give up.
    """
    record, deadline = folder.read(), time.monotonic() + GIVE_UP_S
    if record.launching is None or not is_launching(record):
        return record
    pid = record.launching["pid"]
    try:
        signal_exactly((pid, record.launching["start_time"]), signal.SIGTERM)
    except PermissionError as exc:
        raise LaunchError(f"run {record.id} is still being launched by pid {pid}, which is another user's") from exc
    on_notice(f"run {record.id} is still being launched: pid {pid} was asked to give up")
    while is_launching(record):
        if time.monotonic() > deadline:
            raise LaunchError(
                f"run {record.id} is still being launched: pid {pid} has not given up in {GIVE_UP_S:.0f} s",
                hint=f"end that process, then orch stop {record.id} again",
            )
        time.sleep(POLL_S)
        record = folder.read()
    return record


def _verdict(record: RunRecord, status: Status) -> Verdict:
    alive = [node.node for node in status.nodes if node.alive]
    if alive:
        raise LaunchError(f"run {record.id} still runs on {fold(alive)}", hint=f"orch stop {record.id} once more")
    if status.verdict.state is RunState.LOST and record.started:
        raise RunLost(
            f"run {record.id}: {status.verdict.message}; every process there that carried the run's mark was ended",
            hint="a process that had overwritten its environment (setproctitle does) may be left: look for it there",
        )
    if status.verdict.state.final and status.verdict.state is not RunState.LOST:
        return status.verdict
    return Verdict(RunState.STOPPED, message="stopped before every node had started")
