"""Polls the scheduler in a thread while a run is watched, and describes changes for the user."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING

from orchestrator.errors import LaunchError
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.job import GONE, SILENT, SUSPENDED, JobStatus

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing itself from Python 3.11 on

POLL_S, LAST_POLL_S = 2.0, 30.0
POSITION_S = 30.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """A job's status, position and newest attempt at one time."""

    status: JobStatus | None
    attempt: int
    position: str = ""
    queried_s: float = field(default=0.0, compare=False)
    """When the query began, by time.monotonic()."""

    def is_outdated(self, agents_since_s: float) -> bool:
        """True if the job waited in the queue, and its agents have appeared since: it has started meanwhile."""
        return self.status is not None and self.status.waits and self.queried_s < agents_since_s < math.inf


class Poll:
    """
    Polls a job until the context ends.

    A scheduler that hangs delays only this thread. While it does not answer, the pauses between polls grow.
    """

    def __init__(self, launcher: Launcher, job: str | None, attempt: int) -> None:
        self._latest = PollResult(JobStatus(SILENT), attempt)
        self._error: Exception | None = None
        self._launcher = launcher
        self._job = job
        self._ended = threading.Event()
        self._has_polled = threading.Event()
        self._position_time = float("-inf")

    def __enter__(self) -> Self:
        threading.Thread(target=self._poll_until_ended, name="queue", daemon=True).start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        self._ended.set()

    def result(self) -> PollResult:
        """
        The newest result; SILENT until the first poll has ended.

        Raises:
            Exception: the error that has ended the polling, if any.
        """
        if self._error is not None:
            raise self._error
        return self._latest

    def first_result(self, wait_s: float) -> PollResult:
        """Return the newest result; wait for the first poll to end, at most `wait_s`. The status has no reason if it has not."""
        self._has_polled.wait(wait_s)
        return self.result()

    def _poll_until_ended(self) -> None:
        pause_s = POLL_S
        while not self._ended.is_set():
            try:
                self._latest = self._poll()
            except LaunchError as error:  # the machine that has Slurm cannot be reached
                self._latest = replace(self._latest, status=JobStatus(SILENT, str(error)))
            except Exception as error:  # noqa: BLE001  raised by `result`
                if not self._ended.is_set():  # else the launcher was closed meanwhile
                    self._error = error
                return
            finally:
                self._has_polled.set()
            pause_s = next_pause_s(pause_s, self._latest.status)
            self._ended.wait(pause_s)

    def _poll(self) -> PollResult:
        queried_s = time.monotonic()
        status = self._launcher.job_status(self._job)  # before the attempt: a job that is over has begun its last one
        if self._ended.is_set():  # a launcher that was closed meanwhile would connect again
            return PollResult(status, self._latest.attempt, queried_s=queried_s)
        attempt = self._launcher.attempt()
        if status is None or not status.waits:
            return PollResult(status, attempt, queried_s=queried_s)
        is_changed = _state(status) != _state(self._latest.status)
        if not is_changed and time.monotonic() - self._position_time <= POSITION_S:
            return PollResult(status, attempt, self._latest.position, queried_s)
        position = self._launcher.position(status)
        self._position_time = time.monotonic()
        return PollResult(status, attempt, position, queried_s)


def next_pause_s(last_s: float, status: JobStatus | None) -> float:
    """The pause before the next poll: doubled while the scheduler does not answer."""
    return min(2 * last_s, LAST_POLL_S) if status is not None and status.state == SILENT else POLL_S


def describe_job(status: JobStatus, position: str) -> str:
    """The status of a job in one sentence."""
    if status.state == GONE:
        return f"Slurm no longer lists job {status.job}" + (f" ({status.reason})" if status.reason else "")
    start = f"expected to start at {status.start}" if status.start and status.waits else ""
    details = "; ".join(part for part in (status.explanation, position, start) if part)
    reason = f" ({status.reason})" if status.reason else ""
    return f"Slurm job {status.job} is {status.state}{reason}" + (f": {details}" if details else "")


def change_message(before: PollResult, now: PollResult, *, has_log: bool) -> str:
    """The message for a changed job status, else ""; changes that the log shows as well are left out if `has_log`."""
    old, new = before.status, now.status
    if new is None or (_state(new) == _state(old) and now.position == before.position):
        return ""
    if new.state == SILENT:
        return f"Slurm does not answer ({new.reason}); the run is followed without it" if new.reason else ""
    is_reconnected = old is not None and old.state == SILENT and bool(old.reason)
    is_suspension = SUSPENDED in (new.state, old.state if old else "")
    if new.waits or is_reconnected or is_suspension or new.lost_host or not has_log:
        return ("Slurm answers again: " if is_reconnected else "") + describe_job(new, now.position)
    return ""


def _state(status: JobStatus | None) -> tuple[str, str, str] | None:
    return None if status is None else (status.state, status.reason, status.lost_host)
