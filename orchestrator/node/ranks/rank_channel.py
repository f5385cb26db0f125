"""The positions of a node's ranks, as they report them themselves (trainer/runtime/channel.py) and as the kernel does."""

from __future__ import annotations

import os
import select
import struct
import time

from orchestrator.node.ranks.stacks import calls_data_loader, innermost_call
from orchestrator.node.system.fast_stdlib import Socket, dumps, loads, socket, suppress
from orchestrator.node.system.machine import STATE, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional, Tuple

    from orchestrator.node.run.agent_files import RankBody

    Json = Dict[str, Any]

CHANNEL = "channel"
ANSWER_S = 1.0  # an answer takes milliseconds, unless a call holds the interpreter lock
BLOCK_BYTES = 1 << 16
CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the process that listens


def remove_channels(folder: str) -> None:
    """Remove the sockets of ranks that have ended: `orch cp` would list them as files that it cannot copy."""
    with suppress(OSError):
        for name in os.listdir(os.path.join(folder, CHANNEL)):
            os.unlink(os.path.join(folder, CHANNEL, name))


def rank_bodies(folder: str, ranks: Iterable[int]) -> Dict[int, RankBody]:
    """The position of each rank that has a channel."""
    answers = query(folder, ranks, ["collectives", "memory", "stacks"], ANSWER_S)
    return {rank: _body(pid, answer) for rank, (pid, answer) in answers.items()}


def _body(pid: int, answer: Optional[Json]) -> RankBody:
    fields = stat_fields(pid)
    found = answer or {}
    stacks = found.get("stacks") or ""
    return {
        "pid": pid,
        "state": fields[STATE] if fields else "",
        "answers": answer is not None,
        "phase": found.get("phase"),
        "step": found.get("step"),
        "call": innermost_call(stacks) if stacks else "",
        "loads_data": calls_data_loader(stacks),
        "groups": found.get("collectives") or {},
        "memory": found.get("memory"),
        "stacks": stacks,
    }


def query(
    folder: str, ranks: Iterable[int], parts: Iterable[str], wait_s: float
) -> Dict[int, Tuple[int, Optional[Json]]]:
    """The pid of each rank that has a channel, and its answer; None if it has not answered within wait_s."""
    request = dumps({"parts": list(parts)}).encode() + b"\n"
    clients = {rank: Client() for rank in ranks}
    try:
        sent = {rank: client for rank, client in clients.items() if client.send(folder, rank, request)}
        deadline_s = time.monotonic() + wait_s
        waiting = list(sent.values())
        while waiting and time.monotonic() < deadline_s:
            for client in select.select(waiting, [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                client.receive()
            waiting = [client for client in waiting if not client.has_ended]
        return {rank: (client.pid(), client.answer()) for rank, client in sent.items()}
    finally:
        for client in clients.values():
            client.connection.close()


class Client:
    """A request to one rank."""

    def __init__(self) -> None:
        self.connection = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(0)
        self.has_ended = False
        self._received = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, folder: str, rank: int, request: bytes) -> bool:
        """Send the request; False if the rank has no channel, or its process has ended."""
        try:
            descriptor = os.open(os.path.join(folder, CHANNEL), os.O_RDONLY | os.O_DIRECTORY)
            try:
                # The path of a socket has at most 107 bytes.
                self.connection.connect(f"/proc/self/fd/{descriptor}/{rank}")
            finally:
                os.close(descriptor)
            self.connection.send(request)
        except BlockingIOError:  # its queue is full: it has a channel, and answers nobody
            return True
        except OSError:
            return False
        return True

    def pid(self) -> int:
        credentials = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return int(CREDENTIALS.unpack(credentials)[0])

    def receive(self) -> None:
        data = b""
        with suppress(OSError):  # the process has ended
            data = self.connection.recv(BLOCK_BYTES)
        self._received += data
        self.has_ended = not data

    def answer(self) -> Optional[Json]:
        """The answer; None if it is not complete."""
        if not self.has_ended:
            return None
        try:
            answer = loads(self._received)
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None
