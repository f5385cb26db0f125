"""Giving a run its supervisor, and saying so where it has none or one that cannot do its work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from orchestrator.console import say
from orchestrator.store import RunFolder
from orchestrator.supervision import supervisor

START_WAIT_S = 20.0
POLL_S = 0.02


@contextlib.contextmanager
def supervised(folder: RunFolder) -> Iterator[None]:
    """Start the run's supervisor beside the block, which does not wait for it; where it does not come up, say so."""

    def start() -> None:
        if why := start_and_wait(folder):
            run = folder.path.name
            say(
                f"warning: run {run} has no supervisor: {why}. If a rank or a node dies while nobody watches, "
                f"the others go on until `orch stop {run}`; `orch attach {run}` tries again"
            )

    starting = threading.Thread(target=start)
    starting.start()
    try:
        yield
    finally:
        starting.join()


def start_and_wait(folder: RunFolder) -> str:
    """Start the run's supervisor and wait until it is at work; why it is not, or nothing."""
    try:
        process = supervisor.start(folder)
    except OSError as exc:
        return str(exc)
    own = f"pid {process.pid} "
    threading.Thread(target=process.wait, daemon=True).start()  # for a process that outlives it and has other children
    deadline = time.monotonic() + START_WAIT_S
    while time.monotonic() < deadline:
        if (folder.supervisor() or "").startswith(own) or process.poll() == 0:  # 0: there was nothing left to supervise
            return ""
        if process.poll() is not None:
            return f"it ended with status {process.returncode}, see {folder.path}/supervisor.log"
        time.sleep(POLL_S)
    return f"it has not begun in {START_WAIT_S:.0f} s, see {folder.path}/supervisor.log"


def say_that_nodes_ask(folder: RunFolder) -> None:
    """What it means that somebody had to answer for the logins of a run."""
    run = folder.path.name
    say(
        f"warning: nodes of run {run} ask for a password, a code or a passphrase, and its supervisor has no terminal: "
        f"they are not supervised. If a rank or a node dies while nobody watches, the others go on until `orch stop {run}`"
    )
