"""How a rank ends that has failed: whom it tells, in which order, and what it still waits for."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Callable, NoReturn

from ..errors import NO_RETRY, SMALLER, as_printed, kind_of, write_error_file
from .rendezvous import Failure, RollCall

if TYPE_CHECKING:
    from types import TracebackType


def exit_on_unexpected_errors(roll: RollCall | None = None) -> None:
    """
    From here on an exception nobody foresaw prints its traceback, fills the error file and ends the process at once.

    With `roll`, the other ranks are told; and a lost connection is reported as what ended the rank at its other end, where
    that left word. Without os._exit the interpreter would tear down a live process group, which can abort or hang. What
    does not fit into memory will not fit the next time: that ends with NO_RETRY, and says what to change.
    """
    stderr = sys.stderr

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr = stderr  # init_process_group wraps the hook, and holds back what it writes until it returns
        failure = told = _failure(error)
        try:
            callstack = "".join(traceback.format_exception(kind, error, trace))
            lost = roll if failure.kind == "network" else None
            cause = lost.cause(failure) if lost else None
            told = cause or failure
            write_error_file(os.environ, told.message, kind=told.kind, callstack=callstack)
            if roll and not lost:
                roll.tell(failure)
            sys.stderr.write(_line(cause.message) if cause else _printed(error, callstack, failure))
            if lost and cause:
                lost.leave()  # rank 0 keeps its store for those who look there now
        finally:  # whatever of it fails, as writing does where the disk of the log is full
            end(told.code)

    sys.excepthook = hook


def within(limit_s: float, act: Callable[[], object]) -> None:
    """Wait for it so long; after that it goes on as long as the process does."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(limit_s)


def end(code: int) -> NoReturn:
    """At once: a normal exit after gloo can abort in its threads although all the work is done."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _failure(error: BaseException) -> Failure:
    kind = kind_of(error)
    if kind == "memory":
        return Failure(f"out of memory: {error}; {SMALLER}", kind, NO_RETRY)
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return Failure(f"{type(error).__name__}: {error}", kind, code)


def _printed(error: BaseException, callstack: str, failure: Failure) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted\n"
    return callstack + (_line(failure.message) if failure.kind == "memory" else "")


def _line(message: str) -> str:
    return as_printed(message, os.environ.get("RANK", "0"))
