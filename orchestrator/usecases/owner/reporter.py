"""The start of the process that runs the hooks of a run under Slurm (usecases/owner/job_reporter.py)."""

from __future__ import annotations

import subprocess
import sys
import time

from orchestrator.records.run_folder import RunFolder
from orchestrator.usecases.owner.start import environment_of_orch

STARTED_S, POLL_S = 20.0, 0.02
_started: list[subprocess.Popen[bytes]] = []
"""The processes that were started: Python warns of one that is forgotten while it runs."""


def start_reporter(folder: RunFolder) -> None:
    """Start the process, unless the run has no hooks; one that another process has made needless ends at once."""
    if not folder.read_plan().hooks:
        return
    with folder.supervisor_log() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.usecases.owner.job_reporter", str(folder.path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment_of_orch(),
            start_new_session=True,
        )
    _started.append(process)
    deadline_s = time.monotonic() + STARTED_S
    while folder.reporter() is None and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
