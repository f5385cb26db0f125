"""Start the supervisor of a run, and report why a run has none or one that cannot supervise."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from orchestrator.store import RunFolder
from orchestrator.supervision import supervisor

START_WAIT_S = 20.0
POLL_S = 0.02


@contextlib.contextmanager
def supervised(folder: RunFolder, on_warning: Callable[[str], None]) -> Iterator[None]:
    """Start the run's supervisor while the block runs, which does not wait for it; warn if it does not come up."""

    def start() -> None:
        if why := start_and_wait(folder):
            on_warning(_without_supervisor(folder, why))

    starting = threading.Thread(target=start)
    try:
        starting.start()
    except RuntimeError as exc:  # this user may have no more threads
        on_warning(_without_supervisor(folder, str(exc)))
        yield
        return
    try:
        yield
    finally:
        starting.join()


def _without_supervisor(folder: RunFolder, why: str) -> str:
    run = folder.path.name
    return (
        f"run {run} has no supervisor: {why}. If a rank or a node dies while nobody watches, "
        f"the others go on until `orch stop {run}`; `orch attach {run}` tries again"
    )


def start_and_wait(folder: RunFolder) -> str:
    """Start the run's supervisor and wait until it supervises; return why it does not, or nothing."""
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


def logins_need_answers(folder: RunFolder) -> str:
    """The warning about a run whose logins a person had to answer."""
    run = folder.path.name
    return (
        f"nodes of run {run} ask for a password, a code or a passphrase, and its supervisor has no terminal: "
        f"they are not supervised. If a rank or a node dies while nobody watches, the others go on until `orch stop {run}`"
    )
