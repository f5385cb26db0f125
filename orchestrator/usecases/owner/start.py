"""
The start of the process that owns a run (usecases/owner/owner.py), first of all that a launch does: both import their modules then at the same time.

It imports the standard library only, and is also the program of that process. The request follows over the link (usecases/owner/viewer.py); a
process that gets none ends, having done nothing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_LAUNCH = "ssh-launch"
_WITHOUT_START = frozenset({"--help", "-h", "--dry-run"})


class OwnerProcess:
    """The process, and the end of the link to it."""

    def __init__(self) -> None:
        self.link, far = _link()
        with far, _sigint_blocked():  # the owner unblocks it once it can report an interrupt
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.usecases.owner.start", str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,  # None: closed from the beginning
                cwd="/",  # so that nothing is imported from the user's folder
                env=environment_of_orch(),
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )

    def discard(self) -> None:
        """End the process, which has got no request."""
        self.link.close()
        self.process.kill()
        self.process.wait()


_early: list[OwnerProcess] = []
"""The process that the command line has started before it was parsed, until it is used."""


@contextmanager
def early_owner(argv: Sequence[str]) -> Iterator[None]:
    """Start the process now if a command line probably launches a run; at the end of the block, end it if nothing has used it."""
    if launches(argv):
        with suppress(OSError):  # then it is started, or the failure reported, when it is needed
            _early.append(OwnerProcess())
    try:
        yield
    finally:
        while _early:
            _early.pop().discard()


def owner_process() -> OwnerProcess:
    """The process that was started early, or else a new one."""
    return _early.pop() if _early else OwnerProcess()


def launches(argv: Sequence[str]) -> bool:
    """True if a command line launches a run over SSH, unless it has a mistake."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return words[:1] == [_LAUNCH] and _WITHOUT_START.isdisjoint(words)


def _link() -> tuple[socket.socket, socket.socket]:
    """The two ends of a new link. Neither takes the number of a standard stream that is closed; the owner's end keeps its number there."""
    near, far = socket.socketpair()
    with near, far:
        return _above_streams(near), _above_streams(far)


def _above_streams(end: socket.socket) -> socket.socket:
    return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and in a program that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def environment_of_orch() -> dict[str, str]:
    """The environment of a process in another working folder that imports this orch, which may be a checkout in the present one."""
    root = Path(__file__).parents[3]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else str(root)}


def main() -> int:
    """The process: own a run; argv[1] is the number of the descriptor of the link to the viewer."""
    from orchestrator.gc_tuning import infrequent_gc

    with infrequent_gc():  # until the run has started
        from orchestrator.usecases.owner.owner import own_run  # within the block

        return own_run(int(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
