"""Read the output files of a run: parts of named files, and what files gain while they are followed."""

from __future__ import annotations

import os
import stat
import time

from orchestrator.node.endpoint.report import READ_FIRST, Requested, clock_ahead_s, is_stream, streams
from orchestrator.node.protocol.operations import FOLLOW, READ, answers
from orchestrator.node.run.run_folder import node_folders, read_agent
from orchestrator.node.system.files import absolute_path, read_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Dict, List, Optional, Tuple

    from orchestrator.node.protocol.operations import Steps
    from orchestrator.node.protocol.output import (
        ChunkBody,
        FollowBody,
        FollowReply,
        FollowRequest,
        ReadReply,
        ReadRequest,
    )

    Ranges = Dict[str, Tuple[int, int]]  # file -> where its part begins and ends

POLL_S = 0.05
ACTIVE_S = 5.0  # after its last change, a folder counts as quiet
QUIET_S = 0.1  # between two stats of a quiet node folder
QUIET_SHARED_S = 1.0  # the same where one endpoint polls the folders of all nodes, on a shared file system
OUTPUTS_EVERY = 8  # every eighth stat is of a rank's file
MIN_SHARE_BYTES = 4096
SUBSCRIPTIONS = 8  # kept; a reader whose subscription is forgotten sends its offsets again


class Reading:
    """Reads parts of files, in rotation if they are more than a reply may have."""

    def __init__(self) -> None:
        self.last_file = ""

    def read(self, attempt: str, ranges: Ranges, budget: int) -> Tuple[List[ChunkBody], bytes]:
        """Read an equal share of every part, beginning after the last file of the previous call; then distribute the rest."""
        records = [name for name in sorted(ranges) if name.endswith(READ_FIRST)]
        outputs = [name for name in sorted(ranges) if not name.endswith(READ_FIRST)]
        later = [name for name in outputs if name > self.last_file]
        order = records + later + outputs[: len(outputs) - len(later)]
        share = max(MIN_SHARE_BYTES, budget // max(1, len(order)))
        sizes = dict.fromkeys(order, 0)
        for limit in (share, budget):
            for name in order:
                begin, end = ranges[name]
                more = min(limit - sizes[name], end - begin - sizes[name], budget)
                if more > 0:
                    sizes[name] += more
                    budget -= more
        chunks: List[ChunkBody] = []
        parts = []
        for name in order:
            begin = ranges[name][0]
            data = read_at(os.path.join(attempt, name), begin, sizes[name]) if sizes[name] else b""
            if data:
                chunks.append({"file": name, "offset": begin, "size": len(data)})
                parts.append(data)
                self.last_file = self.last_file if name in records else name
        return chunks, b"".join(parts)


def clocks_of(attempt: str, chunks: List[ChunkBody]) -> Dict[str, Optional[float]]:
    """For each node that wrote the chunks: its agent's clock minus the clock since boot."""
    nodes = {chunk["file"].partition("/")[0] for chunk in chunks}
    return {node: clock_ahead_s(read_agent(os.path.join(attempt, node))) for node in nodes}


def gap(name: str, offset: int, size: int) -> ChunkBody:
    return {"file": name, "gap": offset - size, "offset": size}


def size_of(path: str) -> int:
    """The size of a regular file; 0 if there is none."""
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return state.st_size if stat.S_ISREG(state.st_mode) else 0


class LogFiles:
    """Reads and follows the output files of runs. It keeps the offsets of each reader, so that a request does not repeat them."""

    def __init__(self) -> None:
        self._reading = Reading()
        self._prefix = os.urandom(8).hex()  # another connection's positions are unknown here
        self._count = 0
        self._subscriptions: Dict[str, Subscription] = {}  # by the position of the last reply, the oldest first

    @answers(READ)
    def read(self, request: ReadRequest, _payload: bytes) -> Tuple[ReadReply, bytes]:
        """Read the requested parts of files, as far as they exist; a file that ends before its part is a gap."""
        attempt = absolute_path(request["attempt_dir"])
        ranges: Ranges = {}
        gaps: List[ChunkBody] = []
        for name, (begin, end) in request["ranges"].items():
            node, _, file = name.partition("/")
            node_folders({"attempt_dir": attempt, "nodes": [node]})  # refuses a name that is a path
            size = size_of(os.path.join(attempt, node, file)) if is_stream(file) else 0
            if min(size, end) > begin:
                ranges[name] = begin, min(size, end)
            elif size < begin and os.path.isdir(attempt):
                gaps.append(gap(name, begin, size))
        chunks, payload = self._reading.read(attempt, ranges, request["max_bytes"])
        return {"chunks": gaps + chunks, "clocks_ahead_s": clocks_of(attempt, chunks)}, payload

    @answers(FOLLOW)
    def follow(self, request: FollowRequest, _payload: bytes) -> Steps[FollowReply]:
        """Wait up to wait_s for files to grow beyond the offsets, and return the new content; without waiting, look at all files."""
        begin = request["begin"]
        subscription = self._subscriptions.pop(request["position"] or "", None)
        if begin is not None:
            subscription = Subscription(begin, time.monotonic())
        if subscription is None:
            return {"position": None, "chunks": [], "clocks_ahead_s": {}}, b""
        chunks, payload = yield from subscription.wait(request["max_bytes"], request["wait_s"])
        self._count += 1
        position = f"{self._prefix}-{self._count}"
        self._subscriptions[position] = subscription
        for oldest in list(self._subscriptions)[:-SUBSCRIPTIONS]:
            del self._subscriptions[oldest]
        clocks = clocks_of(subscription.attempt, [chunk for chunk in chunks if "size" in chunk])
        return {"position": position, "chunks": chunks, "clocks_ahead_s": clocks}, payload


class Subscription:
    """The files that one reader follows, and its offset in each."""

    def __init__(self, begin: FollowBody, now: float) -> None:
        self.attempt = absolute_path(begin["attempt_dir"])
        self.offsets = dict(begin["offsets"])
        self._begin = begin
        self._requested = Requested(begin["outputs"])
        self._reading = Reading()
        self._search_pace = Pace(now, QUIET_SHARED_S)  # of the search for nodes, unless they are given
        self._quiet_s = QUIET_SHARED_S if begin["nodes"] is None else QUIET_S
        self._nodes: Dict[str, NodeFiles] = {}
        known: Dict[str, List[str]] = {}
        for name in self.offsets:
            known.setdefault(name.partition("/")[0], []).append(name)
        self._add_nodes(known, now)
        self._add_nodes({node: [] for node, _ in node_folders(begin)}, now)

    def wait(self, max_bytes: int, wait_s: float) -> Steps[List[ChunkBody]]:
        """The new content, after at most wait_s; what it contains is not returned again."""
        deadline = time.monotonic() + wait_s
        while True:
            begun = time.monotonic()
            ranges, gaps = self.grown(begun, at_once=wait_s == 0)
            chunks, payload = self._reading.read(self.attempt, ranges, max_bytes)
            now = time.monotonic()
            if chunks or gaps or now >= deadline:
                self.offsets.update({chunk["file"]: chunk["offset"] + chunk.get("size", 0) for chunk in gaps + chunks})
                return gaps + chunks, payload
            # poll a slow file system half of the time at most
            yield min(deadline - now, max(POLL_S, now - begun, self._due_s() - now))

    def grown(self, now: float, *, at_once: bool) -> Tuple[Ranges, List[ChunkBody]]:
        """The unread parts of the files, and the gaps: files that are shorter than their offsets. Looks at the folders that are due."""
        if self._begin["nodes"] is None and (self._search_pace.is_due(now) or at_once):
            self._add_nodes({node: [] for node, _ in node_folders(self._begin)}, now)
        ranges: Ranges = {}
        gaps: List[ChunkBody] = []
        for node in self._nodes.values():
            if not (at_once or node.has_unread or node.is_due(now)):
                continue
            node.has_unread = False
            for name, size in node.look().items():
                offset = self.offsets.get(name, 0)
                if size > offset:
                    ranges[name] = offset, size
                elif size < offset:
                    gaps.append(gap(name, offset, size))
                node.has_unread |= size != offset
            if node.has_unread:
                node.pace.changed(now)
        if gaps and not os.path.isdir(self.attempt):
            return {}, []
        return ranges, gaps

    def _add_nodes(self, found: Mapping[str, List[str]], now: float) -> None:
        """Add the nodes that are new, with their files that have an offset."""
        for node in found.keys() - self._nodes.keys():
            folder = os.path.join(self.attempt, node)
            self._nodes[node] = NodeFiles(folder, self._requested, found[node], Pace(now, self._quiet_s))
            self._search_pace.changed(now)

    def _due_s(self) -> float:
        paces = [node.pace for node in self._nodes.values()]
        return min(pace.due_s for pace in (paces if self._begin["nodes"] else [*paces, self._search_pace]))


class Pace:
    """When to look at a folder: at every poll for ACTIVE_S after a change, later once per `quiet_s`."""

    def __init__(self, now: float, quiet_s: float) -> None:
        self.due_s = self._changed_s = now
        self._quiet_s = quiet_s

    def changed(self, now: float) -> None:
        self.due_s = self._changed_s = now

    def is_active(self, now: float) -> bool:
        return now - self._changed_s < ACTIVE_S

    def is_due(self, now: float) -> bool:
        """True if it is time to look; the next time is then set."""
        if now < self.due_s:
            return False
        self.due_s = now if self.is_active(now) else now + self._quiet_s
        return True


class NodeFiles:
    """
    The files of a node folder and their sizes.

    While a folder is quiet, one file is checked at a time, in turn the two that the agent writes: any output makes its index
    grow. Every eighth time it is a rank's file, in case the agent cannot write.
    """

    def __init__(self, folder: str, requested: Requested, expected: Iterable[str], pace: Pace) -> None:
        self.pace = pace
        self.has_unread = False  # at the last look: an answer may be too small for everything
        self._attempt, self._node = os.path.split(folder)
        self._requested = requested
        self._sizes = dict.fromkeys(expected, 0)  # of a vanished file, 0
        self._turn = 0

    def is_due(self, now: float) -> bool:
        """True if it is time to look at all files: the folder is active, or the file checked in this turn has another size."""
        if not self.pace.is_due(now):
            return False
        if self.pace.is_active(now):
            return True
        name = self._checked_name()
        return size_of(os.path.join(self._attempt, name)) != self._sizes.get(name, 0)

    def look(self) -> Dict[str, int]:
        sizes = {
            f"{self._node}/{name}": size
            for name, size in streams(os.path.join(self._attempt, self._node))
            if self._requested(self._node, name)
        }
        self._sizes = {**dict.fromkeys(self._sizes, 0), **sizes}
        return self._sizes

    def _checked_name(self) -> str:
        self._turn += 1
        outputs = [name for name in self._sizes if not name.endswith(READ_FIRST)]
        if outputs and self._turn % OUTPUTS_EVERY == 0:
            return outputs[self._turn // OUTPUTS_EVERY % len(outputs)]
        return f"{self._node}/{READ_FIRST[self._turn % len(READ_FIRST)]}"
