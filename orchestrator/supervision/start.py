"""Start the supervisor of a run; report why it did not start, or cannot log in to the nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.store import RunFolder, SupervisorProcess

START_WAIT_S = 20.0
POLL_S = 0.02


@contextlib.contextmanager
def supervised(folder: RunFolder, on_warning: Callable[[str], None]) -> Iterator[None]:
    """Start the run's supervisor in parallel with the block, which waits for the start at its end; warn at once if it fails."""

    def start() -> None:
        if why := start_and_wait(folder):
            on_warning(_without_supervisor(folder, why))

    starting = threading.Thread(target=start)
    try:
        starting.start()
    except RuntimeError as exc:  # the user's limit of threads is reached
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
        f"the others continue until `orch stop {run}`; `orch attach {run}` tries again"
    )


def start_and_wait(folder: RunFolder) -> str:
    """Start the run's supervisor and wait until it holds the run's lock; return the cause if it does not, else an empty text."""
    try:
        process = _start_process(folder)
    except OSError as exc:
        return str(exc)
    ours = SupervisorProcess(process.pid, socket.gethostname())
    with contextlib.suppress(RuntimeError):  # the user's limit of threads is reached
        threading.Thread(target=process.wait, daemon=True).start()  # reaps it, if this process lives longer
    deadline = time.monotonic() + START_WAIT_S
    while time.monotonic() < deadline:
        if folder.supervisor() == ours or process.poll() == 0:  # 0: the run was already over
            return ""
        if process.poll() is not None:
            return f"it ended with status {process.returncode}, see {folder.supervisor_log_file}"
        time.sleep(POLL_S)
    return f"it has not started in {START_WAIT_S:.0f} s, see {folder.supervisor_log_file}"


def _start_process(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor of the run as a process that outlives the terminal."""
    with folder.supervisor_log() as log:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.supervision.supervisor", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",  # so that nothing is imported from the user's folder, and its file system can be unmounted
            env=_environment(Path(__file__).parents[2]),
            start_new_session=True,
        )


def _environment(root: Path) -> dict[str, str]:
    """The supervisor's environment; it imports orch from `root`, which may be a checkout that is only the working folder here."""
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else str(root)}


def logins_need_answers(folder: RunFolder) -> str:
    """The warning that logins of the run need a person's answers, which its supervisor cannot give."""
    run = folder.path.name
    return (
        f"nodes of run {run} ask for a password, a code or a passphrase, and its supervisor has no terminal: "
        f"they are not supervised. If a rank or a node dies while nobody watches, the others continue until `orch stop {run}`"
    )
