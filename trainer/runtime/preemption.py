"""The preemption signal: SIGUSR2, or a SIGTERM that the launcher did not send. No torch here."""

from __future__ import annotations

import os
import signal
import threading

SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


class PreemptionSignal:
    """
    Received once a signal announces that time is nearly up. A thread waits for it, so a collective cannot delay it.

    Create it before torch is imported: threads that exist by then would take the signals.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number in SIGNALS:  # a launcher may have passed on SIG_IGN
            signal.signal(number, signal.SIG_DFL)
        self._received = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def is_received(self) -> bool:
        """From the first signal on."""
        return self._received.is_set()

    def _wait(self) -> None:
        launcher = os.getppid()
        while True:
            info = signal.sigwaitinfo(SIGNALS)
            if info.si_signo == signal.SIGTERM and info.si_pid == launcher:
                # a rank blocked in a collective with a failed rank must not wait longer
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
                os.kill(os.getpid(), signal.SIGTERM)
            self._received.set()  # Slurm sends SIGTERM to every process of a job it preempts, some time before SIGKILL
