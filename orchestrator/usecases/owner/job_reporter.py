"""
The process that runs the hooks of a run under Slurm, beside its job: on the machine that has submitted it, until the run ends.

It looks at the run as `orch status` does. The nodes of a job cannot run hooks: they often reach no other network, and have no secrets of services.
If it is killed, the run continues, and `orch attach` starts another one.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.endpoint.access import Terminal
from orchestrator.errors import NodesError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.records.run_folder import RunFolder
from orchestrator.supervision.hooks import running_hooks
from orchestrator.supervision.rank_findings import RankFindings
from orchestrator.supervision.restart import OnRecord
from orchestrator.usecases.runs.refresh import refresh

LOOK_S = 10.0
UNANSWERED_S = 60.0
"""The pause after a look that has failed, as without a connection to the login node."""


def report_run(folder: RunFolder) -> None:
    """Run the hooks of a run until it is over."""
    plan = folder.read_plan()
    with folder.reporting() as is_ours:
        if not is_ours:
            return
        folder.add_event("reporter-started", f"pid {os.getpid()} runs the hooks")
        with running_hooks(folder, plan.hooks) as on_record:
            while not folder.read().state.final:
                with closing(launcher_for(plan, Terminal(may_prompt=False))) as launcher:
                    _report(folder, launcher, on_record)
                time.sleep(UNANSWERED_S)


def _report(folder: RunFolder, launcher: Launcher, on_record: OnRecord) -> None:
    """Report the states and conditions of the run until it is over, or the cluster does not answer."""
    attempt, findings = 0, RankFindings(folder)
    with suppress(NodesError):
        while not (refreshed := refresh(folder, launcher=launcher, diagnoses=True)).record.state.final:
            if refreshed.record.attempt != attempt:
                attempt, findings = refreshed.record.attempt, RankFindings(folder)
            findings.record(refreshed.record, refreshed.nodes)
            on_record(folder.read(), refreshed.nodes)
            time.sleep(LOOK_S)


if __name__ == "__main__":
    report_run(RunFolder(Path(sys.argv[1])))
