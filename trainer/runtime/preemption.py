"""Whether this rank was told that its time is nearly up: SIGUSR2, and a SIGTERM that is not from its launcher. No torch here."""

from __future__ import annotations

import os
import signal
import threading

WARNINGS = (signal.SIGUSR2, signal.SIGTERM)


class Notice:
    """
    Set once a warning has come. A thread waits for the signals, so they are noticed in the midst of a collective too.

    Make it before torch is imported: threads that are there by then would take the signals instead.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)
        for number in WARNINGS:  # a launcher may have passed on "ignore"
            signal.signal(number, signal.SIG_DFL)
        self._given = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def is_given(self) -> bool:
        """Stays true."""
        return self._given.is_set()

    def _wait(self) -> None:
        launcher = os.getppid()
        while True:
            told = signal.sigwaitinfo(WARNINGS)
            if told.si_signo == signal.SIGTERM and told.si_pid == launcher:
                end_at_once()
            self._given.set()  # Slurm sends TERM to every process of a job that it preempts, some time before it kills


def end_at_once() -> None:
    """By the default action of SIGTERM: a rank that waits for one that has failed must not wait on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    os.kill(os.getpid(), signal.SIGTERM)
