"""
One query to NCCL's RAS, when ranks hang: which ranks does it not reach, and which have launched fewer collectives. See decision 072.

A thread of every rank answers it, with what it collects from all ranks. The agent polls, and never waits for the answer.
"""

from __future__ import annotations

import time

from orchestrator.node.agent.ras_answer import facts
from orchestrator.node.system.fast_stdlib import Socket, loads, socket, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Dict, Mapping, Optional

    from orchestrator.node.run.agent_files import RankBody, RasBody

LEAST_VERSION = (2, 29, 2)  # older ones crash the job when they are queried: NVIDIA/nccl#1669, #1718, #1762
DEFAULT_ADDRESS = "localhost:28028"
LOOPBACK = ("::1", "127.0.0.1")  # `localhost`, without a resolver that may block
# As JSON: in the text form, versions up to 2.30.7 at least crash if a communicator is being created (#2346).
REQUEST = b"client protocol 2\nset format json\ntimeout 5\nstatus\n"
CONNECT_S = 0.2  # the kernel of this node accepts, or refuses, at once
LIMIT_S = 15.0  # RAS itself waits 5 s for a process that does not answer
MOST_BYTES = 1 << 23
BLOCK_BYTES = 1 << 18


def may_be_queried(nccl: Optional[Mapping[str, Any]], ranks: Mapping[int, RankBody]) -> bool:
    """
    True if this version answers safely, RAS is not turned off, and no communicator is being created.

    Args:
        nccl: the version and the variables, as a rank reports them (trainer/runtime/channel.py).
    """
    if not nccl or tuple(nccl["version"]) < LEAST_VERSION or nccl["environ"].get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return False
    groups = [group for body in ranks.values() for group in body["groups"].values()]
    # NCCL creates a group's communicator at its first collective
    return not any(group["enqueued"] and not group["completed"] for group in groups)


class RasQuery:
    """The query to the RAS of this node's ranks, and the answer to it."""

    def __init__(
        self,
        nccl: Mapping[str, Any],
        pids: Collection[int],
        world_size: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Connect and send the request.

        Args:
            nccl: the version and the variables, as a rank reports them.
            pids: the ranks of this node, as the port may belong to another job.
            world_size: in a communicator of this size, NCCL's ranks are those of the job.
        """
        self._version = ".".join(map(str, nccl["version"]))
        self._pids, self._world_size, self._clock_s = pids, world_size, clock_s
        self._deadline_s = clock_s() + LIMIT_S
        self._unsent, self._received = REQUEST, b""
        address = nccl["environ"].get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS
        self._connection = _connect(address)
        self._problem = "" if self._connection else f"nothing listens on {address}"

    def poll(self) -> Optional[RasBody]:
        """The answer, or why there is none; None while it is awaited."""
        has_ended = self._connection is None or self._exchange(self._connection)
        if not has_ended and self._clock_s() < self._deadline_s:
            return None
        self.close()
        if not has_ended:
            self._problem = f"no answer within {LIMIT_S:.0f} s"
        return self._result()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, connection: Socket) -> bool:
        """Send and receive as far as possible; True if the connection has ended."""
        try:
            if self._unsent:
                self._unsent = self._unsent[connection.send(self._unsent) :]
            while len(self._received) <= MOST_BYTES:
                data = connection.recv(BLOCK_BYTES)
                if not data:
                    return True
                self._received += data
        except BlockingIOError:
            return False
        except OSError as error:
            self._problem = str(error)
            return True
        self._problem = f"the answer has more than {MOST_BYTES >> 20} MiB"
        return True

    def _result(self) -> RasBody:
        result: RasBody = {"version": self._version, "facts": [], "problem": self._problem}
        if not self._problem:
            try:
                answer: Dict[str, Any] = loads(self._received[self._received.index(b"{") :])
                result["facts"] = facts(answer, self._pids, self._world_size)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                result["problem"] = f"the answer cannot be read: {error}"
            else:
                result["problem"] = "" if result["facts"] else "the answer is that of another job"
        return result


def _connect(address: str) -> Optional[Socket]:
    """A connection to a numeric address or localhost; None if nothing listens there, or it is another name."""
    host, _, port = address.rpartition(":")
    for name in LOOPBACK if host == "localhost" else (host.strip("[]"),):
        connection = None
        with suppress(OSError, ValueError):  # the kernel may have no IPv6
            connection = Socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_S)
            # AI_NUMERICHOST: queries no resolver
            found = socket.getaddrinfo(name, port, connection.family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
            connection.connect(found[0][4])
            connection.settimeout(0)
            return connection
        if connection is not None:
            connection.close()
    return None
