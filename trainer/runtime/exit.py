"""The exit of a rank that has failed: error file, report to the other ranks, exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Callable, Iterator, NoReturn

from ..errors import NO_RETRY, SMALLER, NetworkError, as_printed, kind_of, report, write_error_file
from .rendezvous import Failure, Rendezvous

if TYPE_CHECKING:
    from types import TracebackType


REPORT_S = 5.0  # limit for telling the other ranks


def exit_on_unexpected_errors(rendezvous: Rendezvous | None = None) -> None:
    """
    Install an excepthook that prints the traceback, fills the error file and ends the process at once.

    With a rendezvous, the failure is reported to the other ranks; a lost connection is reported as the failure that ended
    the rank at its other end, if that rank published it. os._exit, because the interpreter would tear down a live process
    group, which can abort or hang. Out of memory ends with NO_RETRY and advice: a retry would fail again.
    """
    stderr = sys.stderr

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr = stderr  # init_process_group wraps the hook, and holds back stderr until it returns
        failure = reported = _failure_of(error)
        try:
            callstack = "".join(traceback.format_exception(kind, error, trace))
            lost = rendezvous if failure.kind == "network" else None
            cause = lost.find_cause(failure) if lost else None
            reported = cause or failure
            write_error_file(os.environ, reported.message, kind=reported.kind, callstack=callstack)
            if rendezvous and not lost:
                rendezvous.report_failure(failure)
            text = "interrupted\n" if isinstance(error, KeyboardInterrupt) else callstack
            text += _line(failure.message) if failure.kind == "memory" else ""
            sys.stderr.write(_line(cause.message) if cause else text)
            if lost and cause:
                lost.leave()  # rank 0 keeps its store for the ranks that look for a cause now
        finally:  # also if a step above fails, as writing does when the disk of the log is full
            exit_now(reported.code)

    sys.excepthook = hook


def wait_at_most(limit_s: float, act: Callable[[], object]) -> None:
    """Run `act` in a daemon thread and wait for it up to `limit_s`."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(limit_s)


@contextlib.contextmanager
def limit(seconds: float, message: str, rendezvous: Rendezvous) -> Iterator[None]:
    """
    End the process with a NetworkError if the block takes longer than `seconds`.

    For calls of libraries that wait without a limit of their own, and without the interpreter lock.
    """
    timer = threading.Timer(seconds, _end, (NetworkError(message), rendezvous))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(error: NetworkError, rendezvous: Rendezvous) -> NoReturn:
    try:
        code = report(error, os.environ)
        # The blocked call may hold the connection to the store.
        wait_at_most(REPORT_S, lambda: rendezvous.report_failure(Failure(str(error), error.kind, code)))
    finally:
        exit_now(error.exit_code)


def exit_now(code: int) -> NoReturn:
    """End the process without teardown: gloo's threads can abort a normal exit although all the work is done."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _failure_of(error: BaseException) -> Failure:
    kind = kind_of(error)
    if kind == "memory":
        return Failure(f"out of memory: {error}; {SMALLER}", kind, NO_RETRY)
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return Failure(f"{type(error).__name__}: {error}", kind, code)


def _line(message: str) -> str:
    return as_printed(message, os.environ.get("RANK", "0"))
