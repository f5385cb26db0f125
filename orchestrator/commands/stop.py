"""`orch stop`: end a run on every node, and say what could not be ended."""

from __future__ import annotations

import os

from orchestrator import supervise
from orchestrator.console import say
from orchestrator.errors import LaunchError, RunLost
from orchestrator.hostlist import fold
from orchestrator.launchers import launcher_for
from orchestrator.plan import GRACE_S
from orchestrator.run import RunRecord, RunState
from orchestrator.store import Store, home
from orchestrator.supervise import Status, Verdict


def stop(run: str) -> int:
    """
    Stop the run; stopping one that has ended is no error.

    Raises:
        LaunchError: something of it could not be ended.
        RunLost: its folders are gone, so nobody knows what to end.
    """
    folder = Store(home(os.environ)).find(run)
    record, plan = folder.read(), folder.read_plan()
    over = record.state.final and record.state is not RunState.LOST
    launcher = launcher_for(plan)
    try:
        left = launcher.stop(record.slurm_job, grace_s=GRACE_S)
        if left:
            raise LaunchError(
                f"run {record.id} is not known to be over everywhere\n  " + "\n  ".join(left),
                hint=f"orch stop {record.id} again when the nodes can be reached",
            )
        if not over:
            status = supervise.observe(plan, launcher, record.slurm_job)
            record = supervise.settle(folder, _verdict(record, status), status.nodes)
    finally:
        launcher.close()
    say(f"run {record.id} is {record.state.value}")
    return 0


def _verdict(record: RunRecord, status: Status) -> Verdict:
    alive = [node.node for node in status.nodes if node.alive]
    if alive:
        raise LaunchError(f"run {record.id} still runs on {fold(alive)}", hint=f"orch stop {record.id} once more")
    if status.verdict.state is RunState.LOST and record.started:
        raise RunLost(
            f"run {record.id}: {status.verdict.message}; whatever carried its mark there was ended",
            hint="what had overwritten its environment (setproctitle does) may be left: look for it there",
        )
    if status.verdict.state.final and status.verdict.state is not RunState.LOST:
        return status.verdict
    return Verdict(RunState.STOPPED, message="stopped before every node had started")
