"""
The controller's side of the endpoint: starts node/endpoint.py over any transport and asks it for everything a node can do.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.program import FLAGS, MARKER, OLDEST_PYTHON, program
from orchestrator.endpoint.replies import (
    AgentRecord,
    Answer,
    Chunk,
    Facts,
    Hunted,
    Leftover,
    NodeObservation,
    StopResult,
    Trace,
    Window,
)
from orchestrator.errors import NodeError, Unreachable
from orchestrator.transports.base import Channel, ChannelClosed, ChannelReader, NoMarker, Transport

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing itself from Python 3.11 on

ANSWER_S = 30.0
BEAT_ANSWER_S = 4.0  # a node that takes longer is silent; how long it may be, the supervisor decides
UNPACK_S = 300.0  # a bundle on a slow shared file system
STOP_MARGIN_S = 10.0  # what node/stop.py adds to the grace
STRAYS_MARGIN_S = 20.0  # what node/strays.py adds to the grace, a vendor's tool that does not answer included
CLEAR_S = 3600.0  # terabytes on a busy file system
JUNK_LIMIT = 64 << 10
HEADER_LIMIT = 64 << 20
PYTHON_HINT = "set python: in the inventory to a Python of 3.8 or newer on that node"
WORKDIR_HINT = "set workdir: in the inventory to a folder that is yours on that node"


def frame(header: Mapping[str, object], payload_bytes: int = 0) -> bytes:
    """One request as bytes, without the payload that follows it."""
    text = json.dumps({**header, "bytes": payload_bytes} if payload_bytes else header).encode()
    return len(text).to_bytes(4, "big") + text


@dataclass(frozen=True, slots=True)
class Beat:
    """What the supervisor says at a beat: what it has seen, the peers' addresses, and how long to wait for news."""

    seen: object
    peers: Sequence[str]
    wait_s: float


class PortTaken(NodeError):
    """Somebody listens on the rendezvous port that was held: another one has to be found."""


class Endpoint:
    """
    A node at one's service. Made by `connect`, which takes the transport over: closing the endpoint closes it.

    One request at a time: other threads wait their turn. Every failure is a NodeError; Unreachable when the node did not
    answer.
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
        """Start the endpoint with the node's Python; on failure the transport is closed."""
        endpoint = cls(transport, python)
        endpoint.open()
        return endpoint

    def open(self) -> None:
        """Start the program on the node; on failure everything is closed again."""
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
        """Whether it can still be asked."""
        return self._channel is not None

    def prepare(self, workdir: str, digest: str) -> bool:
        """Make the working folder, mode 0700 inside, and say whether it has the bundle."""
        reply, _ = self._call({"op": "prepare", "workdir": workdir, "digest": digest}, hint=WORKDIR_HINT)
        return bool(reply["have_bundle"])

    def put_bundle(self, workdir: str, digest: str, tar: bytes, sha256: str) -> None:
        """Unpack a tar.gz, whose checksum is given, as the bundle of that digest, unless it is there by now."""
        request = {"op": "put_bundle", "workdir": workdir, "digest": digest, "sha256": sha256}
        self._call(request, tar, answer_s=UNPACK_S, hint=WORKDIR_HINT)

    def put_files(self, folder: str, files: Sequence[tuple[str, str | bytes, int]]) -> None:
        """Write files, given as path below the folder, content and mode; each is there as a whole or not at all."""
        contents = [
            content.encode(errors="surrogateescape") if isinstance(content, str) else content for _, content, _ in files
        ]
        entries = [
            {"path": path, "size": len(content), "mode": mode}
            for (path, _, mode), content in zip(files, contents, strict=True)
        ]
        self._call({"op": "put_files", "folder": folder, "files": entries}, b"".join(contents), hint=WORKDIR_HINT)

    def reserve(self, candidates: Sequence[str], interfaces: Mapping[str, str]) -> str:
        """
        Find the node's address on the training network and a free port, and hold the port while this endpoint lives.

        Args:
            candidates: addresses or names that may be this node's, best first.
            interfaces: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME as the ranks will have them; they win over candidates.
        """
        reply, _ = self._call({"op": "reserve", "candidates": list(candidates), "interfaces": dict(interfaces)})
        return str(reply["rendezvous"])

    def start(self, argv: Sequence[str], folder: str, *, wait_s: float = 30.0) -> AgentRecord:
        """Start an agent that outlives the connection, and wait until it has written its record into its node folder."""
        request = {"op": "start", "argv": list(argv), "folder": folder, "wait_s": wait_s}
        reply, _ = self._call(request, answer_s=wait_s + ANSWER_S)
        return AgentRecord.of(reply["agent"])

    def files(self, attempt_dir: str, nodes: Sequence[str] | None) -> dict[str, int]:
        """Give the sizes of the files that `read` would read, by name."""
        reply, _ = self._call({"op": "files", **_place(attempt_dir, nodes)})
        return {str(name): int(size) for name, size in reply["files"].items()}

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
        Wait until files of the node folders (None: of all there are) grow beyond the offsets, at most wait_s.

        Args:
            only: the files to read, such as `n0/rank-0.out`; None means all.

        Returns:
            What they grew by, max_bytes at most in all; files that are not in offsets begin at 0.
        """
        request = {"op": "read", **_place(attempt_dir, nodes), "offsets": dict(offsets)}
        request |= {"max_bytes": max_bytes, "wait_s": wait_s, "only": None if only is None else list(only)}
        reply, payload = self._call(request, answer_s=wait_s + ANSWER_S)
        chunks, position = [], 0
        for entry in reply["chunks"]:
            size = entry.get("size", 0)
            data = payload[position : position + size]
            shift_s = reply["written"].shift_s(reply["clocks"].get(entry["file"].partition("/")[0]))
            chunks.append(Chunk(entry["file"], entry["offset"], data, entry.get("gap", 0), shift_s))
            position += size
        return chunks

    def observe(self, attempt_dir: str, nodes: Sequence[str] | None) -> list[NodeObservation]:
        """Say what is known of every node folder."""
        reply, _ = self._call({"op": "observe", **_place(attempt_dir, nodes)})
        return [NodeObservation.of(seen, reply["written"]) for seen in reply["nodes"]]

    def find(self, workdir: str, run_id: str) -> Trace | None:
        """What the run left in the working folder; None when it was never there."""
        reply, _ = self._call({"op": "find", "workdir": workdir, "run": run_id})
        try:
            return Trace.of(reply)
        except ValueError as error:
            raise NodeError(self.node, f"{workdir}/runs/{run_id}: {error}") from error

    def is_local(self, path: str) -> bool:
        """Whether a path is on a file system of that machine's own, which it may export all the same."""
        return bool(self._call({"op": "file_system", "path": path})[0]["local"])

    def supervise(self, attempt_dir: str, node: str, beat: Beat) -> tuple[NodeObservation, object]:
        """
        One beat: leave the supervisor's mark in the node folder, and wait up to beat.wait_s for news of its agent.

        Returns:
            What is known of the node, and what the next beat has to take along as `seen`.
        """
        request = {"op": "supervise", **_place(attempt_dir, [node]), **asdict(beat)}
        reply, _ = self._call(request, answer_s=beat.wait_s + BEAT_ANSWER_S)
        return NodeObservation.of(reply["nodes"][0], reply["written"]), reply["seen"]

    def reach(self, addresses: Sequence[str], port: int) -> set[str]:
        """Those of the addresses whose host answers this node at that port, if only with a refusal."""
        reply, _ = self._call({"op": "reach", "addresses": list(addresses), "port": port}, answer_s=2 * BEAT_ANSWER_S)
        return set(reply["addresses"])

    def stop(self, attempt_dir: str, nodes: Sequence[str] | None, *, grace_s: float) -> list[StopResult]:
        """End what the node folders recorded, and nothing else; SIGKILL for what outlasts the grace."""
        request = {"op": "stop", **_place(attempt_dir, nodes), "grace_s": grace_s}
        reply, _ = self._call(request, answer_s=grace_s + STOP_MARGIN_S + ANSWER_S)
        return [StopResult.of(result) for result in reply["nodes"]]

    def strays(self, *, young_s: float, grace_s: float, dry_run: bool) -> Hunted:
        """End the user's processes of runs without an agent on that machine, or only list them; and list who else uses its cards."""
        request = {"op": "strays", "young_s": young_s, "grace_s": grace_s, "dry_run": dry_run}
        reply, _ = self._call(request, answer_s=grace_s + STRAYS_MARGIN_S + ANSWER_S)
        return Hunted.of(reply)

    def clear(self, workdir: str, *, older_than_s: float, checkpoints: bool, dry_run: bool) -> list[Leftover]:
        """Remove run folders and bundles that are over and older, or only tell; those with checkpoints only if told so."""
        request = {"op": "clear", "workdir": workdir, "older_than_s": older_than_s}
        request |= {"checkpoints": checkpoints, "dry_run": dry_run}
        reply, _ = self._call(request, answer_s=CLEAR_S)
        return [Leftover(**entry) for entry in reply["entries"]]

    def command(self, argv: Sequence[str], *, timeout_s: float) -> Answer:
        """Run a command in the environment of a login there, from the home folder; an argument that begins with `~/` is below it."""
        reply, _ = self._call(
            {"op": "command", "argv": list(argv), "folder": "~", "timeout_s": timeout_s}, answer_s=timeout_s + ANSWER_S
        )
        return Answer(reply["code"], reply["out"], reply["err"])

    def command_once(self, argv: Sequence[str], mark: str, *, timeout_s: float, begin: bool = True) -> Answer:
        """
        Run a command from the folder of the file `mark`, once in all: who asks again, over a new connection, hears its first answer.

        Args:
            begin: False if it is not to begin any more; what has begun is waited for all the same.
        """
        request = {"op": "command_once", "argv": list(argv), "folder": mark.rpartition("/")[0], "timeout_s": timeout_s}
        reply, _ = self._call({**request, "mark": mark, "begin": begin}, answer_s=timeout_s + ANSWER_S)
        return Answer(reply["code"], reply["out"], reply["err"])

    def close(self) -> None:
        """End the endpoint; agents go on."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_program(self) -> None:
        """Send the program and the first request in one go, then see what comes back."""
        try:
            self._channel = self._transport.open([self._python, *FLAGS])
            self._reader = ChannelReader(self._channel)
            with contextlib.suppress(ChannelClosed):  # an old Python leaves before it has read all, but it says so
                self._channel.write(program() + frame({"op": "hello"}), timeout_s=ANSWER_S)
            line = self._reader.skip_to(MARKER.encode(), limit=JUNK_LIMIT, timeout_s=ANSWER_S)
            version = line.decode("ascii", "replace").strip()
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
                raise NodeError(self.node, f"Python {version} is too old: {self._python}", hint=PYTHON_HINT)
            reply, _ = self._receive(ANSWER_S)
        except ChannelClosed as closed:
            raise self._no_python(closed) from closed
        except TimeoutError as error:
            raise Unreachable(self.node, f"no answer for {ANSWER_S:g} s") from error
        except NoMarker as error:
            reason = f"{self._python} did not start: the login shell says {str(error)!r}"
            hint = "its start-up files should be silent without a terminal"
            raise NodeError(self.node, reason, hint=hint) from error
        self.facts = Facts(**reply["facts"])

    def _no_python(self, closed: ChannelClosed) -> NodeError:
        said = closed.stderr.strip() or self._reader.peek() if hasattr(self, "_reader") else closed.stderr.strip()
        if closed.exit_status in (126, 127) or "not found" in said.lower():
            reason = "cannot be run" if closed.exit_status == 126 or "ermission" in said else "not found"  # noqa: PLR2004
            return NodeError(self.node, f"no Python: {self._python} {reason}", hint=PYTHON_HINT)
        last = said.splitlines()[-1] if said else "no output"
        return NodeError(
            self.node, f"{self._python} did not start, exit status {closed.exit_status}: {last}", hint=PYTHON_HINT
        )

    def _call(
        self, header: Mapping[str, object], payload: bytes = b"", *, answer_s: float = ANSWER_S, hint: str = ""
    ) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            if self._channel is None:
                raise Unreachable(self.node, "the connection is closed")
            try:
                asked = time.time()
                self._channel.write(frame(header, len(payload)), timeout_s=ANSWER_S)
                self._channel.write(payload, timeout_s=ANSWER_S)  # not joined: all nodes may be sent the same one
                reply, data = self._receive(answer_s)
                reply["written"] = Window(asked + reply["held_s"], time.time())
            except (TimeoutError, ChannelClosed, Unreachable) as error:
                self._drop()
                raise self._lost(error, answer_s) from error
            except BaseException:  # Ctrl-C in the middle of a frame
                self._drop()
                raise
        if not reply["ok"]:
            kind = PortTaken if reply["kind"] == "PortTaken" else NodeError
            raise kind(self.node, str(reply["message"]), hint=hint)
        return reply, data

    def _drop(self) -> None:
        """A late answer would be taken for the next one's."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        length = int.from_bytes(self._reader.read_exactly(4, timeout_s=timeout_s), "big")
        if length > HEADER_LIMIT:
            raise ChannelClosed(None, f"a frame header of {length} bytes")
        try:
            reply: dict[str, Any] = json.loads(self._reader.read_exactly(length, timeout_s=timeout_s))
        except ValueError as error:
            raise ChannelClosed(None, "a frame header that is not JSON") from error
        return reply, self._reader.read_exactly(reply.get("bytes", 0), timeout_s=timeout_s)

    def _lost(self, error: Exception, answer_s: float) -> NodeError:
        if isinstance(error, Unreachable):
            return error
        if isinstance(error, ChannelClosed):
            last = (error.stderr.strip().splitlines() or ["the connection was closed"])[-1]
            return Unreachable(self.node, f"the endpoint ended, exit status {error.exit_status}: {last}")
        return Unreachable(self.node, f"no answer for {answer_s:g} s")


def _place(attempt_dir: str, nodes: Sequence[str] | None) -> dict[str, object]:
    return {"attempt_dir": attempt_dir, "nodes": None if nodes is None else list(nodes)}
