"""
One query to NCCL's RAS, when ranks hang: which ranks does it not reach, and which have launched fewer collectives. See decision 072.

A thread of every rank answers it, with what it collects from all ranks. The agent polls, and never waits for the answer. The form of the
answer is that of `set format json` (NCCL 2.28.7 and newer):
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import time

from orchestrator.node.ranks.stacks import ranks_text
from orchestrator.node.system.fast_stdlib import Socket, loads, socket, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        Callable,
        Collection,
        Dict,
        Iterable,
        Iterator,
        List,
        Mapping,
        Optional,
        Sequence,
        Set,
        Tuple,
    )

    from orchestrator.node.run.agent_files import RankBody, RasBody

    Json = Mapping[str, Any]

LEAST_VERSION = (2, 29, 2)  # older ones crash the job when they are queried: NVIDIA/nccl#1669, #1718, #1762
DEFAULT_ADDRESS = "localhost:28028"
LOOPBACK = ("::1", "127.0.0.1")  # `localhost`, without a resolver that may block
# As JSON: in the text form, versions up to 2.30.7 at least crash if a communicator is being created (#2346).
REQUEST = b"client protocol 2\nset format json\ntimeout 5\nstatus\n"
CONNECT_S = 0.2  # the kernel of this node accepts, or refuses, at once
LIMIT_S = 15.0  # RAS itself waits 5 s for a process that does not answer
MOST_BYTES = 1 << 23
BLOCK_BYTES = 1 << 18
MOST_FACTS = 6
MOST_PROCESSES = 4
HARMLESS = (0, 7)  # ncclSuccess, ncclInProgress
ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    8: "timeout",
}


def may_be_queried(nccl: Optional[Mapping[str, Any]], ranks: Mapping[int, RankBody]) -> bool:
    """
    True if this version answers safely, RAS is not turned off, and no communicator is being created.
    `nccl`: the version and the variables, as a rank reports them (trainer/runtime/channel.py).
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

    def close(self) -> None:
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


def facts(answer: Json, pids: Collection[int], world_size: int) -> List[str]:
    """
    The ranks that are missing, have failed or are behind; that there are none; nothing if no process of `pids` is in the answer.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the answer is not of this form.
    """
    communicators = sorted(answer["communicators"], key=lambda communicator: -int(communicator["size"]))
    members = [rank for communicator in communicators for rank in (*communicator["ranks"], *_missing(communicator))]
    if not {rank["pid"] for rank in members} & set(pids):
        return []
    named: Set[Tuple[str, int]] = set()
    found: List[str] = []
    for communicator in communicators:
        found.extend(_facts(communicator, world_size, named))
    if len(found) > MOST_FACTS:
        found = [*found[:MOST_FACTS], f"{len(found) - MOST_FACTS} more"]
    return found or ["all ranks answer, and have launched the same numbers of collectives"]


def _facts(communicator: Json, world_size: int, named: Set[Tuple[str, int]]) -> Iterator[str]:
    size = int(communicator["size"])
    suffix = "" if size == world_size else f" of a communicator of {size}"
    new = [rank for rank in _missing(communicator) if (rank["host"], rank["pid"]) not in named]
    named.update((rank["host"], rank["pid"]) for rank in new)
    for state in ("dead", "does not answer", "has left the communicator"):
        ranks = [rank for rank in new if _state(rank) == state]
        if ranks:
            plural = state.replace("does ", "do ").replace("has ", "have ")
            text = {"dead": "considered dead"}.get(state, state if len(ranks) == 1 else plural)
            yield f"{_ranks(ranks)}{suffix} {text} ({_processes(ranks)})"
    failed: Dict[int, List[Json]] = {}
    for rank in communicator["ranks"]:
        status = rank["status"]
        for code in {status["init_state"], status["async_error"]} - set(HARMLESS):
            failed.setdefault(code, []).append(rank)
    for code, ranks in sorted(failed.items()):
        yield f"{_ranks(ranks)}{suffix}: {ERRORS.get(code, f'error {code}')} ({_processes(ranks)})"
    yield from _behind(communicator["ranks"], suffix)


def _behind(ranks: Sequence[Json], suffix: str) -> Iterator[str]:
    """The kinds of collectives of which not all ranks have launched equally many."""
    for kind in ranks[0]["collective_counts"] if ranks else ():
        launched: Dict[int, List[Json]] = {}
        for rank in ranks:
            launched.setdefault(rank["collective_counts"][kind], []).append(rank)
        if len(launched) > 1:
            lowest, highest = min(launched), max(launched)
            between = f" ({len(launched) - 2} other counts)" if len(launched) > 2 else ""  # noqa: PLR2004
            behind, ahead = _ranks(launched[lowest]), _ranks(launched[highest])
            verb = "has" if len(launched[lowest]) == 1 else "have"
            yield f"{kind}: {behind}{suffix} {verb} launched {lowest}, {ahead} {highest}{between}"


def _missing(communicator: Json) -> Sequence[Json]:
    return communicator.get("missing_ranks") or ()


def _state(rank: Json) -> str:
    if rank["status"]["considered_dead"]:
        return "dead"
    return "does not answer" if rank["status"]["unresponsive"] else "has left the communicator"


def _ranks(ranks: Iterable[Json]) -> str:
    return ranks_text(sorted(int(rank["rank"]) for rank in ranks))


def _processes(ranks: Sequence[Json]) -> str:
    shown = ", ".join(f"process {int(rank['pid'])} on {rank['host']}" for rank in ranks[:MOST_PROCESSES])
    return shown + (f" and {len(ranks) - MOST_PROCESSES} more" if len(ranks) > MOST_PROCESSES else "")
