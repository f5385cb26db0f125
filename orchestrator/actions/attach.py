"""Start a new supervisor for a run whose supervisor has died, alone or with its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.actions.launch import Launched
from orchestrator.actions.refresh import refresh
from orchestrator.actions.stop import stop
from orchestrator.errors import LaunchError, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.names.hostlist import fold
from orchestrator.run import RunRecord
from orchestrator.store import RunFolder
from orchestrator.supervision.start import logins_need_answers, start_and_wait
from orchestrator.verdict import observe
from orchestrator.verdict.launching import is_launching


def supervise(folder: RunFolder, on_warning: Callable[[str], None]) -> None:
    """
    Start a supervisor for the run; do nothing under Slurm, which supervises its jobs itself.

    Raises:
        UsageError: the run has a supervisor, or is being launched.
        LaunchError: the supervisor does not start.
    """
    record = folder.read()
    if record.launcher == "slurm":
        return
    _refuse_second(folder, record)
    if is_launching(record):
        raise UsageError(f"run {record.id} is still being launched", hint=_hint(record))
    if why := start_and_wait(folder):
        _refuse_second(folder, record)  # another attach may have been faster
        raise LaunchError(f"run {record.id} has no supervisor: {why}")
    if record.attended:
        on_warning(logins_need_answers(folder))


def end_remaining(folder: RunFolder, on_message: Callable[[str], None], on_warning: Callable[[str], None]) -> None:
    """
    End what is left running of a run whose record is final; nothing more supervises it.

    Raises:
        UsageError: the run has a supervisor, which ends the rest.
        LaunchError: some processes could not be ended.
    """
    refreshed = refresh(folder)
    if refreshed.missing:
        on_warning(str(refreshed.missing))
    if not refreshed.left_running:
        return
    _refuse_second(folder, refreshed.record)
    on_message(f"run {refreshed.record.id} still runs on {fold(refreshed.left_running)}: it is ended there")
    stop(folder, on_message)


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
