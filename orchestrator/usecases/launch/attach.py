"""Prepare a run whose supervisor has died, alone or with its machine, for another one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from orchestrator.errors import UsageError
from orchestrator.launch.planned import Launched
from orchestrator.launchers import launcher_for
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.usecases.durations import seconds
from orchestrator.usecases.runs.refresh import refresh
from orchestrator.usecases.runs.stop import stop
from orchestrator.verdict import observe
from orchestrator.verdict.launching import is_launching

END_WAIT_S = 5.0
POLL_S = 0.02


def require_unsupervised(folder: RunFolder) -> None:
    """
    Check that a supervisor may be started for a run over SSH.

    A supervisor that cannot log in to all nodes is ended: this terminal may have keys that it lacks.

    Raises:
        UsageError: the run has a supervisor, or is being launched.
    """
    record = folder.read()
    if record.unsupervised:
        _end_supervisor(folder)
    _refuse_second(folder, record)
    if is_launching(record):
        raise UsageError(f"run {record.id} is still being launched", hint=_hint(record))


def plan_wait_for_nodes(folder: RunFolder, span: str) -> None:
    """Record another time for which restarts wait for lost nodes, as typed after --wait-for-nodes."""
    wait_s = seconds("--wait-for-nodes", span)
    folder.write_plan(replace(folder.read_plan(), wait_for_nodes_s=wait_s))


def _end_supervisor(folder: RunFolder) -> None:
    """End the run's supervisor if it is on this machine; the run continues."""
    supervisor = folder.supervisor()
    if supervisor is None or supervisor.pid is None or supervisor.host != socket.gethostname():
        return
    folder.add_event("supervisor-replaced", f"pid {supervisor.pid} is ended, because it cannot log in to some nodes")
    with suppress(ProcessLookupError):
        os.kill(supervisor.pid, signal.SIGTERM)  # it holds the lock that names it, so the pid is not reused
    deadline = time.monotonic() + END_WAIT_S
    while folder.supervisor() == supervisor and time.monotonic() < deadline:
        time.sleep(POLL_S)


def end_remaining(folder: RunFolder, on_message: Callable[[str], None], on_warning: Callable[[str], None]) -> RunRecord:
    """
    End what is left running of a run whose record is final, and return its record; nothing more supervises it.

    Raises:
        UsageError: the run has a supervisor, which ends the rest.
        LaunchError: some processes could not be ended.
    """
    refreshed = refresh(folder, diagnoses=True)
    if refreshed.missing:
        on_warning(str(refreshed.missing))
    if not refreshed.left_running:
        return refreshed.record
    _refuse_second(folder, refreshed.record)
    on_message(f"run {refreshed.record.id} still runs on {fold(refreshed.left_running)}: it is ended there")
    stop(folder, on_message)
    return refreshed.record


@contextmanager
def attached(folder: RunFolder) -> Iterator[Launched]:
    """Connect a launcher to a run that was launched before, until the context ends."""
    launcher = launcher_for(folder.read_plan())
    try:
        yield Launched(folder, launcher)
    finally:
        launcher.close()


def _refuse_second(folder: RunFolder, record: RunRecord) -> None:
    supervisor = folder.supervisor()
    if supervisor is not None:
        pid = observe.stopped_pid(supervisor)
        hint = _hint(record) if pid is None else f"it is stopped: kill -CONT {pid}, or orch stop {record.id}"
        raise UsageError(f"run {record.id} has a supervisor: {supervisor}", hint=hint)


def _hint(record: RunRecord) -> str:
    return f"orch logs -f {record.id} watches it, orch stop {record.id} ends it"
