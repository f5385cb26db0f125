"""`orch stop`: end a run on every node, and say what could not be ended."""

from __future__ import annotations

import os

from orchestrator import supervise
from orchestrator.console import say
from orchestrator.errors import LaunchError
from orchestrator.launchers import launcher_for
from orchestrator.plan import GRACE_S
from orchestrator.run import RunState
from orchestrator.store import Store, home


def stop(run: str) -> int:
    """
    Stop the run; stopping one that has ended is no error.

    Raises:
        LaunchError: something of it could not be ended.
    """
    folder = Store(home(os.environ)).find(run)
    record, plan = folder.read(), folder.read_plan()
    launcher = launcher_for(plan)
    try:
        left = launcher.stop(record.slurm_job, grace_s=GRACE_S)
        if left:
            raise LaunchError(
                f"run {record.id} is not stopped everywhere\n  " + "\n  ".join(left),
                hint=f"orch stop {record.id} again when the nodes can be reached",
            )
        status = supervise.observe(plan, launcher, record.slurm_job)
    finally:
        launcher.close()
    verdict = status.verdict
    if not verdict.state.final or verdict.state is RunState.LOST:
        verdict = supervise.Verdict(RunState.STOPPED, message="stopped before every node had started")
    state = supervise.settle(folder, verdict, status.nodes).state
    say(f"run {record.id} is {state.value}")
    return 0
