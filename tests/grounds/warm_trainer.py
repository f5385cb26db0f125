"""Ranks of the trainer, forked from a process that has imported their modules: the seconds of imports are spent once, not per rank."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = ("trainer.run_rank", "torch._dynamo", "torch.distributed.fsdp")
DEEPSPEED_MODULES = (
    "deepspeed",
    "deepspeed.module_inject",
    "deepspeed.ops",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)
COMPILING_MODULES = ("torch._inductor.compile_fx",)
_NUMBER = struct.Struct("i")


class WarmProcess:
    """A rank, with the part of subprocess.Popen's interface that tests need. Its parent process only waits and forwards signals."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = self._number(None)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._code = self._number(timeout)
            self._connection.close()
        return self._code

    def poll(self) -> int | None:
        try:
            return self.wait(timeout=0.0)
        except (TimeoutError, BlockingIOError):
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the rank has ended."""
        if self._code is None:
            self._connection.settimeout(None)
            with contextlib.suppress(ConnectionError):
                self._connection.sendall(bytes([number]))

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        value: int
        (value,) = _NUMBER.unpack(self._connection.recv(_NUMBER.size, socket.MSG_WAITALL))
        return value


class WarmTrainer:
    """The process that the ranks are forked from."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.grounds.warm_trainer", str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Sequence[Path]) -> WarmProcess:
        """Run `python -m trainer WORDS` in `cwd`; `output` are the files for standard output and standard error."""
        ours, theirs = socket.socketpair()
        request = {"words": words, "env": dict(env), "cwd": str(cwd), "output": [str(path) for path in output]}
        socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        theirs.close()
        return WarmProcess(ours)

    def close(self) -> None:
        """Kill the process: on a busy machine it would take more than 30 s to unload its modules."""
        self._process.kill()
        self._process.wait()
        self._control.close()


def _serve(control: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the parents of ranks need not be reaped
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1 << 18, 1)
        if not request:
            return
        connection = socket.socket(fileno=descriptors[0])
        rank = json.loads(request)
        if "compile=true" in rank["words"]:
            _import_modules(COMPILING_MODULES)
        if os.fork() == 0:
            control.close()
            _supervise_rank(rank, connection)
            return
        connection.close()


def _import_modules(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    gc.freeze()  # a search for garbage in a rank would copy the pages that hold the modules' objects


def _supervise_rank(request: Mapping[str, Any], connection: socket.socket) -> None:
    """Fork a rank, forward its signals and report its exit code; returns in the rank, after its training."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    rank = os.fork()
    if rank == 0:
        connection.close()
        _run_trainer(request)
        return
    connection.sendall(_NUMBER.pack(rank))
    threading.Thread(target=_forward_signals, args=(connection, rank), daemon=True).start()
    _, status = os.waitpid(rank, 0)
    connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _forward_signals(connection: socket.socket, rank: int) -> None:
    """Forward signals to the rank, and kill it when the test closes the connection."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        while number := connection.recv(1):
            os.kill(rank, number[0])
        os.kill(rank, signal.SIGKILL)


def _run_trainer(request: Mapping[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [
        folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in sys.path
    ]
    for descriptor, path in enumerate(request["output"], start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv[1:] = request["words"]
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import_modules(sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
