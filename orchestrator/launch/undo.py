"""Undo a launch that fails or is interrupted: stop what had started, and record the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from orchestrator.errors import Interrupted, LaunchError, OrchError, PreflightRefused, machine_error
from orchestrator.launchers.base import Launcher
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunState
from orchestrator.verdict.classify import failure_of_launch


@contextmanager
def undo_on_failure(folders: Sequence[RunFolder], launcher: Launcher, *, when: str, left: str) -> Iterator[None]:
    """
    If the block raises any exception, stop what had started of these runs and record the cause.

    Args:
        when: the phase of the launch, such as `during the launch`.
        left: what a failure leaves, such as `nothing was started`.

    Raises:
        Interrupted: instead of a KeyboardInterrupt.
        LaunchError: instead of an error of this machine, and if something may still be running.
    """
    try:
        yield
    except KeyboardInterrupt:
        failure = abandon_launch(folders, launcher, RunState.STOPPED, f"interrupted {when}")
        raise failure or Interrupted(f"interrupted {when}; {left}") from None
    except BaseException as exc:
        machine = machine_error(exc)
        cause = machine or f"{type(exc).__name__}: {exc}"
        why = str(exc) if isinstance(exc, OrchError) else f"the launch failed: {cause}"
        if failure := abandon_launch(folders, launcher, RunState.FAILED, why, error=exc):
            raise failure from exc
        if machine is not None:
            raise LaunchError(f"{why}; {left}", hint=machine.hint) from exc
        raise


def abandon_launch(
    folders: Sequence[RunFolder],
    launcher: Launcher,
    state: RunState,
    why: str,
    *,
    error: BaseException | None = None,
) -> LaunchError | None:
    """
    Stop what had started of these runs and record the cause; return an error if something may still be running.

    Args:
        error: the error by which the launch failed; None if it was interrupted.
    """
    failure = None if error is None else failure_of_launch(error)
    try:
        if state is RunState.STOPPED:
            with suppress(Exception):  # `undo` connects again
                launcher.close()  # cancels the requests in progress, so that they start nothing more
            for folder in folders:
                with suppress(OSError):  # the disk may be full
                    folder.request_stop()
        left = launcher.undo()
    except KeyboardInterrupt:
        left = ["interrupted a second time, without waiting for the nodes"]
    except Exception as exc:  # noqa: BLE001  the first failure is the one to report
        left = [f"it could not be stopped: {exc}"]
    if left:
        changes: dict[str, Any] = {
            "state": RunState.LOST,
            "message": f"{why}; not everything could be stopped",
            "failure": failure,
        }
    else:
        refused, ended = isinstance(error, PreflightRefused), datetime.now(timezone.utc).isoformat()
        changes = {"state": state, "message": why, "refused": refused, "failure": failure, "ended": ended}
    for folder in folders:
        with suppress(OSError, OrchError):  # the disk may be why the launch failed
            folder.update(**changes, launching=None)
    if not left:
        return None
    hint = f"once the nodes can be reached, `orch stop {folders[0].path.name}` ends what is left"
    return LaunchError("\n  ".join([why, "not everything could be stopped:", *left]), hint=hint)
