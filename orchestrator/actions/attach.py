"""Supervise a run again whose supervisor, or whose machine, is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.actions.launch import Launched
from orchestrator.errors import LaunchError, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.run import RunRecord
from orchestrator.store import RunFolder
from orchestrator.supervision.start import logins_need_answers, start_and_wait
from orchestrator.verdict import observe
from orchestrator.verdict.launching import is_launching


def supervise(folder: RunFolder, on_warning: Callable[[str], None]) -> None:
    """
    Start a supervisor for the run; under Slurm, which supervises its jobs itself, do nothing.

    Raises:
        UsageError: it has a supervisor, or is being launched.
        LaunchError: the supervisor does not come up.
    """
    record = folder.read()
    if record.launcher == "slurm":
        return
    _refuse_second(folder, record)
    if is_launching(record):
        raise UsageError(f"run {record.id} is still being launched", hint=_hint(record))
    if why := start_and_wait(folder):
        _refuse_second(folder, record)  # another attach was quicker
        raise LaunchError(f"run {record.id} has no supervisor: {why}")
    if record.attended:
        on_warning(logins_need_answers(folder))


@contextmanager
def attached(folder: RunFolder) -> Iterator[Launched]:
    """Give a launcher for a run that was launched before, until the context ends."""
    launcher = launcher_for(folder.read_plan())
    try:
        yield Launched(folder, launcher)
    finally:
        launcher.close()


def _refuse_second(folder: RunFolder, record: RunRecord) -> None:
    present = folder.supervisor()
    if present is not None:
        stopped = observe.stopped_pid(present)
        hint = _hint(record) if stopped is None else f"it is stopped: kill -CONT {stopped}, or orch stop {record.id}"
        raise UsageError(f"run {record.id} has a supervisor: {present}", hint=hint)


def _hint(record: RunRecord) -> str:
    return f"orch logs -f {record.id} watches it, orch stop {record.id} ends it"
