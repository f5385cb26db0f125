"""Signals during a launch: a closed terminal does not end it, and SIGTERM interrupts it as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def survive_sighup() -> Iterator[threading.Event]:
    """Finish a launch although its terminal is closed: SIGHUP only sets the event. Under nohup SIGHUP stays ignored."""
    closed = threading.Event()
    with _handled(signal.SIGHUP, lambda *_: closed.set()):
        yield closed


def sighup_interrupts() -> AbstractContextManager[None]:
    """Treat a closed terminal as SIGTERM, for a command whose run must not continue without it."""
    return _handled(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Treat SIGTERM as Ctrl-C during a launch: `orch stop` sends it, because a shell's `&` makes orch ignore SIGINT."""
    return _handled(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _handled(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """Handle a signal that has its default action; one that the caller of the API ignores or handles is left as it is."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if signal.getsignal(number) is not signal.SIG_DFL or not is_main_thread:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)
