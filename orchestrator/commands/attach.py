"""`orch attach`: supervise a run again whose supervisor, or whose machine, is gone; and watch it."""

from __future__ import annotations

import os

from orchestrator.actions.watch import watch
from orchestrator.console import print_text, say
from orchestrator.errors import LaunchError, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder, Store, home
from orchestrator.supervision.start import say_that_nodes_ask, start_and_wait
from orchestrator.verdict import observe
from orchestrator.verdict.launching import launch_goes_on


def attach(run: str, *, follow: bool) -> int:
    """
    Start a supervisor for the run, and watch it to its end.

    Raises:
        UsageError: it has a supervisor, or is just being launched.
    """
    folder = Store(home(os.environ)).find(run)
    record = folder.read()
    if _over(record):
        say(f"run {record.id} is {record.state.value}" + (f": {record.message}" if record.message else ""))
        return record.exit_code
    if record.launcher == "ssh":
        _supervise(folder, record)
    if not follow:
        print_text(f"{record.id}\n")
        return 0
    launcher = launcher_for(folder.read_plan())
    try:
        return watch(folder, launcher)
    finally:
        launcher.close()


def _supervise(folder: RunFolder, record: RunRecord) -> None:
    _refuse_second(folder, record)
    if launch_goes_on(record):
        raise UsageError(f"run {record.id} is still being launched", hint=_hint(record))
    if why := start_and_wait(folder):
        _refuse_second(folder, record)  # another attach was quicker
        raise LaunchError(f"run {record.id} has no supervisor: {why}")
    if record.attended:
        say_that_nodes_ask(folder)


def _refuse_second(folder: RunFolder, record: RunRecord) -> None:
    present = folder.supervisor()
    if present is not None:
        stopped = observe.stopped_pid(present)
        hint = _hint(record) if stopped is None else f"it is stopped: kill -CONT {stopped}, or orch stop {record.id}"
        raise UsageError(f"run {record.id} has a supervisor: {present}", hint=hint)


def _hint(record: RunRecord) -> str:
    return f"orch logs -f {record.id} watches it, orch stop {record.id} ends it"


def _over(record: RunRecord) -> bool:
    return record.state.final and record.state is not RunState.LOST
