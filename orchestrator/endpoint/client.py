"""The controller's side of an endpoint: starts node/endpoint/ over any transport, and makes requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from orchestrator.endpoint.program import FLAGS, MARKER, OLDEST_PYTHON, program
from orchestrator.endpoint.replies import (
    AgentRecord,
    Chunk,
    CommandResult,
    Facts,
    GarbageEntry,
    NodeObservation,
    ReplyWindow,
    RunTrace,
    StopResult,
    StrayReport,
)
from orchestrator.errors import NodeError, Unreachable
from orchestrator.node import protocol
from orchestrator.transports.base import Channel, ChannelClosed, ChannelReader, NoMarker, Transport

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from orchestrator.node.protocol import Op

ANSWER_S = 30.0
HEARTBEAT_ANSWER_S = 4.0  # a node that takes longer is silent; the supervisor decides how long it may be
PRINTED_S = 1.0  # the wait for the output of a shell that reads nothing
UNPACK_S = 300.0  # for a bundle on a slow shared file system
STOP_MARGIN_S = 10.0  # that node/endpoint/stop.py adds to the grace
STRAYS_MARGIN_S = 20.0  # that node/endpoint/strays.py adds to the grace, including its wait for a vendor's tool
CLEAR_S = 3600.0  # for terabytes on a busy file system
JUNK_LIMIT_BYTES = 64 << 10
HEADER_LIMIT_BYTES = 64 << 20
PYTHON_HINT = "set python: in the inventory to a Python of 3.8 or newer on that node"
WORKDIR_HINT = "set workdir: in the inventory to a folder that is yours on that node"


RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


def frame(request: Mapping[str, object]) -> bytes:
    """A request as bytes, without the payload that follows it."""
    text = json.dumps(request).encode()
    return len(text).to_bytes(4, "big") + text


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    A heartbeat of the supervisor.

    `known` is the state of the last reply, `peers` are the addresses of the other nodes, `wait_s` is how long to wait for
    another state.
    """

    known: object
    peers: Sequence[str]
    wait_s: float


class RendezvousPortTaken(NodeError):
    """Another program listens on the reserved rendezvous port: reserve a new one."""


@dataclass(frozen=True, slots=True)
class TimedReply(Generic[ReplyT]):
    """A reply, its payload, and when it was written."""

    reply: ReplyT
    payload: bytes
    written: ReplyWindow


class Endpoint:
    """
    An endpoint on a node. Made by `connect`, which takes over the transport: closing the endpoint closes it.

    One request at a time: other threads wait. Every failure is a NodeError; Unreachable if the node did not answer.
    """

    facts: Facts

    def __init__(self, transport: Transport, python: str) -> None:
        self._transport = transport
        self._python = python
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._reader: ChannelReader

    @classmethod
    def connect(cls, transport: Transport, python: str) -> Endpoint:
        """Start an endpoint with the node's Python; on failure the transport is closed."""
        endpoint = cls(transport, python)
        endpoint.open()
        return endpoint

    def open(self) -> None:
        """Start the program on the node; on failure close the endpoint."""
        try:
            self._start_program()
        except BaseException:
            self.close()
            raise

    @property
    def node(self) -> str:
        """The inventory name."""
        return self._transport.node

    @property
    def connected(self) -> bool:
        """True while the endpoint can take requests."""
        return self._channel is not None

    def prepare(self, workdir: str, digest: str) -> bool:
        """Make the working folder, with subfolders of mode 0700; return whether it has the bundle."""
        request: protocol.BundleRequest = {"workdir": workdir, "digest": digest}
        return self._call(protocol.PREPARE, request, hint=WORKDIR_HINT).reply["have_bundle"]

    def put_bundle(self, workdir: str, digest: str, tar: bytes, sha256: str) -> None:
        """Unpack a tar.gz with this checksum as the bundle of this digest, unless another connection has done so."""
        request: protocol.PutBundleRequest = {"workdir": workdir, "digest": digest, "sha256": sha256}
        self._call(protocol.PUT_BUNDLE, request, tar, answer_s=UNPACK_S, hint=WORKDIR_HINT)

    def put_files(self, folder: str, files: Sequence[tuple[str, str | bytes, int]]) -> None:
        """Write files, given as path below the folder, content and mode; each is written atomically."""
        contents = [
            content.encode(errors="surrogateescape") if isinstance(content, str) else content for _, content, _ in files
        ]
        entries: list[protocol.FileBody] = [
            {"path": path, "size": len(content), "mode": mode}
            for (path, _, mode), content in zip(files, contents, strict=True)
        ]
        request: protocol.PutFilesRequest = {"folder": folder, "files": entries}
        self._call(protocol.PUT_FILES, request, b"".join(contents), hint=WORKDIR_HINT)

    def reserve(self, candidates: Sequence[str], interfaces: Mapping[str, str]) -> str:
        """
        Find the node's address on the training network and a free port; hold the port until the endpoint is closed.

        Args:
            candidates: addresses or names that may be this node's, best first.
            interfaces: the ranks' NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; they take precedence over candidates.
        """
        request: protocol.ReserveRequest = {"candidates": list(candidates), "interfaces": dict(interfaces)}
        return self._call(protocol.RESERVE, request).reply["rendezvous"]

    def start(self, argv: Sequence[str], folder: str, *, wait_s: float = 30.0) -> AgentRecord:
        """Start an agent that outlives the connection; wait until it has written its record, and return the record."""
        request: protocol.StartRequest = {"argv": list(argv), "folder": folder, "wait_s": wait_s}
        return AgentRecord.of(self._call(protocol.START, request, answer_s=wait_s + ANSWER_S).reply["agent"])

    def files(self, attempt_dir: str, nodes: Sequence[str] | None) -> dict[str, int]:
        """The sizes of the files that `read` reads, by name."""
        return self._call(protocol.FILES, _folders(attempt_dir, nodes)).reply["files"]

    def read(
        self,
        attempt_dir: str,
        nodes: Sequence[str] | None,
        offsets: Mapping[str, int],
        *,
        max_bytes: int = 1 << 20,
        wait_s: float = 1.0,
        only: Sequence[str] | None = None,
    ) -> list[Chunk]:
        """
        Wait until files of the node folders (of all, if `nodes` is None) grow beyond the offsets, at most wait_s.

        Args:
            only: the files to read, such as `n0/rank-0.out`; None means all.

        Returns:
            The new content of the files, max_bytes in total at most; files that are not in offsets begin at 0.
        """
        request: protocol.ReadRequest = {
            **_folders(attempt_dir, nodes),
            "offsets": dict(offsets),
            "max_bytes": max_bytes,
            "wait_s": wait_s,
            "only": None if only is None else list(only),
        }
        answer = self._call(protocol.READ, request, answer_s=wait_s + ANSWER_S)
        chunks, position = [], 0
        for entry in answer.reply["chunks"]:
            size = entry.get("size", 0)
            data = answer.payload[position : position + size]
            correction_s = answer.written.correction_s(answer.reply["clocks"].get(entry["file"].partition("/")[0]))
            chunks.append(Chunk(entry["file"], entry["offset"], data, entry.get("gap", 0), correction_s))
            position += size
        return chunks

    def observe(self, attempt_dir: str, nodes: Sequence[str] | None) -> list[NodeObservation]:
        """The state of every node folder."""
        answer = self._call(protocol.OBSERVE, _folders(attempt_dir, nodes))
        return [NodeObservation.of(body, answer.written) for body in answer.reply["nodes"]]

    def find(self, workdir: str, run_id: str) -> RunTrace | None:
        """The newest attempt of a run in the working folder; None if there is none."""
        request: protocol.FindRequest = {"workdir": workdir, "run": run_id}
        reply = self._call(protocol.FIND, request).reply
        try:
            return RunTrace.of(reply)
        except ValueError as error:
            raise NodeError(self.node, f"{workdir}/runs/{run_id}: {error}") from error

    def is_local(self, path: str) -> bool:
        """Return whether a path is on a local file system of the node, which may still export it."""
        request: protocol.FileSystemRequest = {"path": path}
        return self._call(protocol.FILE_SYSTEM, request).reply["local"]

    def heartbeat(self, attempt_dir: str, node: str, heartbeat: Heartbeat) -> tuple[NodeObservation, object]:
        """
        Record a heartbeat of the supervisor in the node folder; wait up to heartbeat.wait_s until the agent's state changes.

        Returns:
            The state of the node, and `known` for the next heartbeat.
        """
        request: protocol.HeartbeatRequest = {
            **_folders(attempt_dir, [node]),
            "known": heartbeat.known,
            "peers": list(heartbeat.peers),
            "wait_s": heartbeat.wait_s,
        }
        answer = self._call(protocol.HEARTBEAT, request, answer_s=heartbeat.wait_s + HEARTBEAT_ANSWER_S)
        return NodeObservation.of(answer.reply["nodes"][0], answer.written), answer.reply["known"]

    def reach(self, addresses: Sequence[str], port: int) -> set[str]:
        """Return the addresses that the node can reach at this port: the connection is accepted or refused."""
        request: protocol.ReachRequest = {"addresses": list(addresses), "port": port}
        return set(self._call(protocol.REACH, request, answer_s=2 * HEARTBEAT_ANSWER_S).reply["addresses"])

    def stop(self, attempt_dir: str, nodes: Sequence[str] | None, *, grace_s: float) -> list[StopResult]:
        """End the processes of the run on these nodes, and no others; by SIGKILL after the grace."""
        request: protocol.StopRequest = {**_folders(attempt_dir, nodes), "grace_s": grace_s}
        answer = self._call(protocol.STOP, request, answer_s=grace_s + STOP_MARGIN_S + ANSWER_S)
        return [StopResult.of(body) for body in answer.reply["nodes"]]

    def strays(self, *, min_age_s: float, grace_s: float, dry_run: bool) -> StrayReport:
        """End this user's strays on the node, or only list them; list other users' processes on its cards."""
        request: protocol.StraysRequest = {"min_age_s": min_age_s, "grace_s": grace_s, "dry_run": dry_run}
        return StrayReport.of(self._call(protocol.STRAYS, request, answer_s=grace_s + STRAYS_MARGIN_S + ANSWER_S).reply)

    def clear(self, workdir: str, *, older_than_s: float, checkpoints: bool, dry_run: bool) -> list[GarbageEntry]:
        """Remove old runs that have ended and unused bundles, or only list them; runs with checkpoints only on request."""
        request: protocol.ClearRequest = {
            "workdir": workdir,
            "older_than_s": older_than_s,
            "checkpoints": checkpoints,
            "dry_run": dry_run,
        }
        return [
            GarbageEntry(**entry) for entry in self._call(protocol.CLEAR, request, answer_s=CLEAR_S).reply["entries"]
        ]

    def command(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        """Run a command in the home folder, in the environment of a login; an argument that begins with `~/` is expanded."""
        request: protocol.CommandRequest = {"argv": list(argv), "folder": "~", "timeout_s": timeout_s}
        reply = self._call(protocol.COMMAND, request, answer_s=timeout_s + ANSWER_S).reply
        return CommandResult(reply["code"], reply["out"], reply["err"])

    def command_once(
        self, argv: Sequence[str], result_file: str, *, timeout_s: float, begin: bool = True
    ) -> CommandResult:
        """
        Run a command in the folder of `result_file`, once: a later request, over any connection, returns the first result.

        Args:
            begin: False if the command must not begin any more; if it has begun, wait for its result.
        """
        request: protocol.CommandOnceRequest = {
            "argv": list(argv),
            "folder": result_file.rpartition("/")[0],
            "timeout_s": timeout_s,
            "result_file": result_file,
            "begin": begin,
        }
        reply = self._call(protocol.COMMAND_ONCE, request, answer_s=timeout_s + ANSWER_S).reply
        return CommandResult(reply["code"], reply["out"], reply["err"])

    def close(self) -> None:
        """End the endpoint; agents continue."""
        self._drop()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_program(self) -> None:
        """Start the program, and get the facts of the node from its first reply."""
        try:
            self._channel = self._transport.open([self._python, *FLAGS])
            self._reader = ChannelReader(self._channel)
            version = self._send_program(self._channel)
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
                raise NodeError(self.node, f"Python {version} is too old: {self._python}", hint=PYTHON_HINT)
            reply, _ = self._receive(ANSWER_S)
            self._require_ok(reply)
        except ChannelClosed as closed:
            raise self._no_python(closed) from closed
        except TimeoutError as error:
            raise Unreachable(self.node, f"no answer for {ANSWER_S:g} s") from error
        except NoMarker as error:
            reason = f"{self._python} did not start: the login shell printed {str(error)!r}"
            hint = "its start-up files should print nothing without a terminal"
            raise NodeError(self.node, reason, hint=hint) from error
        self.facts = Facts(**cast("protocol.HelloReply", reply)["facts"])

    def _send_program(self, channel: Channel) -> str:
        """Send the program and the first request together; return the version that Python reports."""
        request: protocol.RequestHeader = {"op": protocol.HELLO, "bytes": 0}
        answer_s = ANSWER_S
        try:
            channel.write(program() + frame(request), timeout_s=ANSWER_S)
        except ChannelClosed:
            pass  # an old Python exits before it has read all bytes, but reports its version
        except TimeoutError:
            answer_s = PRINTED_S
        try:
            line = self._reader.skip_to(MARKER.encode(), limit=JUNK_LIMIT_BYTES, timeout_s=answer_s)
        except TimeoutError as error:
            if printed := self._reader.peek():
                raise NoMarker(printed) from error
            raise
        return line.decode("ascii", "replace").strip()

    def _no_python(self, closed: ChannelClosed) -> NodeError:
        output = closed.stderr.strip() or (self._reader.peek() if self._channel is not None else "")
        if closed.exit_status in (126, 127) or "not found" in output.lower():
            reason = "cannot be run" if closed.exit_status == 126 or "ermission" in output else "not found"  # noqa: PLR2004
            return NodeError(self.node, f"no Python: {self._python} {reason}", hint=PYTHON_HINT)
        last = output.splitlines()[-1] if output else "no output"
        return NodeError(
            self.node, f"{self._python} did not start, exit status {closed.exit_status}: {last}", hint=PYTHON_HINT
        )

    def _call(
        self,
        op: Op[RequestT, ReplyT],
        request: RequestT,
        payload: bytes = b"",
        *,
        answer_s: float = ANSWER_S,
        hint: str = "",
    ) -> TimedReply[ReplyT]:
        header: protocol.RequestHeader = {"op": op, "bytes": len(payload)}
        with self._lock:
            if self._channel is None:
                raise Unreachable(self.node, "the connection is closed")
            try:
                sent_s = time.time()
                self._channel.write(frame({**header, **cast("Mapping[str, object]", request)}), timeout_s=ANSWER_S)
                self._channel.write(payload, timeout_s=ANSWER_S)  # without a copy: all nodes may get the same payload
                reply, data = self._receive(answer_s)
                written = ReplyWindow(sent_s + reply["held_s"], time.time())
            except (TimeoutError, ChannelClosed, Unreachable) as error:
                self._drop()
                raise self._lost(error, answer_s) from error
            except BaseException:  # Ctrl-C in the middle of a frame
                self._drop()
                raise
        self._require_ok(reply, hint)
        return TimedReply(cast("ReplyT", reply), data, written)

    def _require_ok(self, reply: protocol.ReplyHeader, hint: str = "") -> None:
        if not reply["ok"]:
            error = cast("protocol.ErrorBody", reply)
            kind = RendezvousPortTaken if error["kind"] == protocol.HeadPortTaken.__name__ else NodeError
            raise kind(self.node, error["message"], hint=hint)

    def _drop(self) -> None:
        """Close the channel: a late reply would be taken for the reply to the next request."""
        channel = self._channel
        self._channel = None  # before the close, which may wait for the program, and which another thread may begin
        if channel is not None:
            channel.close()

    def _receive(self, timeout_s: float) -> tuple[protocol.ReplyHeader, bytes]:
        length = int.from_bytes(self._reader.read_exactly(4, timeout_s=timeout_s), "big")
        if length > HEADER_LIMIT_BYTES:
            raise ChannelClosed(None, f"a frame header of {length} bytes")
        try:
            reply: protocol.ReplyHeader = json.loads(self._reader.read_exactly(length, timeout_s=timeout_s))
        except ValueError as error:
            raise ChannelClosed(None, "a frame header that is not JSON") from error
        return reply, self._reader.read_exactly(reply["bytes"], timeout_s=timeout_s)

    def _lost(self, error: Exception, answer_s: float) -> NodeError:
        if isinstance(error, Unreachable):
            return error
        if isinstance(error, ChannelClosed):
            last = (error.stderr.strip().splitlines() or ["the connection was closed"])[-1]
            return Unreachable(self.node, f"the endpoint ended, exit status {error.exit_status}: {last}")
        return Unreachable(self.node, f"no answer for {answer_s:g} s")


def _folders(attempt_dir: str, nodes: Sequence[str] | None) -> protocol.NodeFolders:
    return {"attempt_dir": attempt_dir, "nodes": None if nodes is None else list(nodes)}
