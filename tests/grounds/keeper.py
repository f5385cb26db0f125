"""
The parent process of a test ground's daemons, and the tests' handle to it. Standard library only.

It is a sub-reaper: all descendants of a daemon stay below it, however often they detach. When its stdin closes, because
the test session ended or was killed, it kills all its descendants and all processes in the daemons' network namespaces, and
removes the ground's folder and user.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
_END_S = 20.0
_REMOVAL_S = 600.0  # of the folder, on a disk with other work; the farm of a benchmark has some 100,000 files
_PAUSE_S = 0.02


class Keeper:
    """Starts daemons that cannot outlive this process; `close` ends them."""

    def __init__(self, folder: Path, *, user: str = "") -> None:
        """Own `folder` and, if given, the system account `user`: `close` removes both."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(folder), user],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests; the keeper ends when stdin closes
        )

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> int:
        """Start a daemon in its own session, in the foreground, and return its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": list(argv), "env": dict(env), "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def processes(self) -> dict[int, str]:
        """Pid -> command name of all live processes below the keeper."""
        return descendants(self._process.pid)

    def close(self) -> None:
        """End all processes, and remove the folder and the account; returns when none is left."""
        self._process.communicate(timeout=2 * _END_S + _REMOVAL_S)


def descendants(ancestor: int) -> dict[int, str]:
    """Pid -> command name of all live processes below `ancestor`; zombies do not count."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            command, state, parent = stat
            children.setdefault(parent, []).append((pid, command, state))
    found: dict[int, str] = {}
    unvisited = [ancestor]
    while unvisited:
        for pid, command, state in children.get(unvisited.pop(), []):
            unvisited.append(pid)
            if state != "Z":
                found[pid] = command
    return found


class Network:
    """A network namespace other than this process's, held open until `close` so that its number is not reused."""

    def __init__(self, pid: int) -> None:
        """Hold the namespace of a process."""
        self._descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self.name = str(Path(f"/proc/self/fd/{self._descriptor}").readlink())
        if self.name == network_name(os.getpid()):
            self.close()
            raise ProcessLookupError(f"process {pid} has no separate network namespace")

    def processes(self) -> dict[int, str]:
        """Pid -> command name of all live processes in the namespace."""
        stats = {pid: _stat(pid) for pid in _pids() if network_name(pid) == self.name}
        return {pid: stat[0] for pid, stat in stats.items() if stat is not None}

    def close(self) -> None:
        os.close(self._descriptor)


def network_name(pid: int) -> str:
    """The name of a process's network namespace; empty if the process has ended or is another user's."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Command name, state and parent of a process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command name may hold spaces and brackets, so the fields are counted from its last bracket
    head, _, tail = text.rpartition(")")
    state, parent = tail.split()[:2]
    return head.partition("(")[2], state, int(parent)


def _serve(folder: str, user: str) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGTERM, _leave)
    try:
        for line in sys.stdin:
            sys.stdout.write(f"{_spawn(**json.loads(line))}\n")
            sys.stdout.flush()
    finally:
        networks = _networks_below()
        _wait(lambda: not _kill_all(networks), awaited="processes to end")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if user:
            _wait(lambda: _remove_user(user), awaited=f"user {user} to go")
        shutil.rmtree(folder, ignore_errors=True)


def _spawn(argv: list[str], env: dict[str, str], log: str) -> int:
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(argv[0], argv, env, file_actions=files, setsid=True)


def _reap(_signal: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # none left


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit


def _networks_below() -> list[Network]:
    """The daemons' network namespaces other than the keeper's own."""
    found: dict[str, Network] = {}
    for pid in descendants(os.getpid()):
        if network_name(pid) not in {"", network_name(os.getpid()), *found}:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                network = Network(pid)
                found[network.name] = network
    return list(found.values())


def _kill_all(networks: Sequence[Network]) -> Mapping[int, str]:
    victims = descendants(os.getpid())
    for network in networks:
        victims.update(network.processes())
    return kill_each(victims)  # SIGKILL: they write only to the folder that is removed next


def kill(pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Signal a process that may have ended."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return


def kill_each(processes: Mapping[int, str]) -> Mapping[int, str]:
    """Send SIGKILL to each and return them: an empty result means that all have ended."""
    for pid in processes:
        kill(pid)
    return processes


def _remove_user(user: str) -> bool:
    # fails while another session holds the lock of the password file
    subprocess.run(["userdel", user], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return user not in {entry.pw_name for entry in pwd.getpwall()}


def _wait(condition: Callable[[], bool], *, awaited: str) -> None:
    end = time.monotonic() + _END_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {_END_S:g} s for {awaited}")
        pause.wait(_PAUSE_S)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
