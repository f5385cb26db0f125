"""Polls the scheduler in a thread while a run is watched, and words what changed for the user."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from orchestrator.errors import LaunchError
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.job import SILENT, JobStatus

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing itself from Python 3.11 on

POLL_S, LAST_POLL_S = 2.0, 30.0
POSITION_S = 30.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """What was heard at one time of a job; `attempt` is the newest that had begun by then."""

    queue: JobStatus | None
    attempt: int
    position: str = ""


class Poll:
    """
    Polls a job until the context ends.

    A scheduler that hangs delays this thread alone; one that does not answer is polled less and less often.
    """

    def __init__(self, launcher: Launcher, job: str | None, attempt: int) -> None:
        self.answer = PollResult(JobStatus(SILENT), attempt)
        """The newest answer; before the first one nothing is known."""
        self._launcher, self._job = launcher, job
        self._enough = threading.Event()
        self._positioned = float("-inf")

    def __enter__(self) -> Self:
        threading.Thread(target=self._ask_on, name="queue", daemon=True).start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        self._enough.set()

    def _ask_on(self) -> None:
        pause_s = POLL_S
        while not self._enough.is_set():
            try:
                self.answer = self._ask()
            except LaunchError as error:  # the machine where Slurm is cannot be reached
                self.answer = replace(self.answer, queue=JobStatus(SILENT, str(error)))
            except Exception:
                if not self._enough.is_set():  # else what it asked was closed meanwhile
                    raise
            pause_s = next_pause_s(pause_s, self.answer.queue)
            self._enough.wait(pause_s)

    def _ask(self) -> PollResult:
        before = self.answer
        queue = self._launcher.queue(self._job)  # first: what it calls over has begun its last attempt by then
        attempt, position = self._launcher.attempt(), before.position
        if queue is None or not queue.waits:
            return PollResult(queue, attempt)
        if _state(queue) != _state(before.queue) or time.monotonic() - self._positioned > POSITION_S:
            position, self._positioned = self._launcher.position(queue), time.monotonic()
        return PollResult(queue, attempt, position)


def next_pause_s(last_s: float, queue: JobStatus | None) -> float:
    """How long to leave the scheduler alone after that answer."""
    return min(2 * last_s, LAST_POLL_S) if queue is not None and queue.word == SILENT else POLL_S


def described(queue: JobStatus, position: str) -> str:
    """The state of a job in one sentence."""
    start = f"expected to start at {queue.start}" if queue.start and queue.waits else ""
    said = "; ".join(part for part in (queue.explanation, position, start) if part)
    reason = f" ({queue.reason})" if queue.reason else ""
    return f"Slurm job {queue.job} is {queue.word}{reason}" + (f": {said}" if said else "")


def news(before: PollResult, now: PollResult, *, heard: bool) -> str:
    """The message for a changed scheduler state, or "" if nothing changed; shorter if the log of the run arrives (`heard`)."""
    old, new = before.queue, now.queue
    if new is None or (_state(new) == _state(old) and now.position == before.position):
        return ""
    if new.word == SILENT:
        return f"Slurm does not answer ({new.reason}); the run is followed without it" if new.reason else ""
    answers_again = old is not None and old.word == SILENT and bool(old.reason)
    if new.waits or answers_again or not heard:
        return ("Slurm answers again: " if answers_again else "") + described(new, now.position)
    return ""


def _state(queue: JobStatus | None) -> tuple[str, str] | None:
    return None if queue is None else (queue.word, queue.reason)
