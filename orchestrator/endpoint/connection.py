"""One connection to a node: starts node/endpoint/ over any transport, and exchanges one request and one reply at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from orchestrator.endpoint.clock import ClockBounds
from orchestrator.endpoint.program import FLAGS, MARKER, OLDEST_PYTHON, program
from orchestrator.endpoint.replies import Facts
from orchestrator.endpoint.start_failure import PYTHON_HINT, start_failure
from orchestrator.errors import NodeError, Unreachable
from orchestrator.node import protocol
from orchestrator.progress import OnShare, no_progress
from orchestrator.transports.base import Channel, ChannelClosed, ChannelReader, NoMarker, Transport

if TYPE_CHECKING:
    from orchestrator.node import messages
    from orchestrator.node.protocol import Op

ANSWER_S = 30.0
PART_BYTES = 1 << 21  # of a payload, sent between two reports of the progress
PRINTED_S = 1.0  # the wait for the output of a shell that reads nothing
JUNK_LIMIT_BYTES = 64 << 10
HEADER_LIMIT_BYTES = 64 << 20

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class RendezvousPortTaken(NodeError):
    """Another program listens on the reserved rendezvous port: reserve a new one."""


@dataclass(frozen=True, slots=True)
class TimedReply(Generic[ReplyT]):
    """A reply, its payload, and the node's clock."""

    reply: ReplyT
    payload: bytes
    clock: ClockBounds


def frame(request: Mapping[str, object]) -> bytes:
    """A request as bytes, without the payload that follows it."""
    text = json.dumps(request).encode()
    return len(text).to_bytes(4, "big") + text


class Connection:
    """
    The program on a node and the channel to it; closing the connection closes the transport, too.

    One request at a time: other threads wait. Every failure is a NodeError; Unreachable if the node did not answer.
    """

    facts: Facts
    _clock: ClockBounds

    def __init__(self, transport: Transport, python: str) -> None:
        self._transport = transport
        self._python = python
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._reader: ChannelReader

    def open(self) -> None:
        """Start the program on the node; on failure close the connection."""
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
    def python(self) -> str:
        """The node's Python that runs the program."""
        return self._python

    @property
    def remark(self) -> str:
        """A property of the connection that the user should know, or empty."""
        return self._transport.remark

    @property
    def connected(self) -> bool:
        """True while requests can be made."""
        return self._channel is not None

    def call(
        self,
        op: Op[RequestT, ReplyT],
        request: RequestT,
        payload: bytes = b"",
        *,
        answer_s: float = ANSWER_S,
        hint: str = "",
        on_sent: OnShare = no_progress,
    ) -> TimedReply[ReplyT]:
        """Make one request; `hint` is the next step if the node reports an error, `on_sent` takes the sent share of the payload."""
        header: messages.RequestHeader = {"op": op, "bytes": len(payload)}
        with self._lock:
            channel = self._channel  # another thread may close the connection
            if channel is None:
                raise Unreachable(self.node, "the connection is closed")
            try:
                sent_s = time.time()
                channel.write(frame({**header, **cast("Mapping[str, object]", request)}), timeout_s=ANSWER_S)
                for start in range(0, len(payload), PART_BYTES):  # in parts: all nodes may get the same payload
                    channel.write(payload[start : start + PART_BYTES], timeout_s=ANSWER_S)
                    on_sent(min(1.0, (start + PART_BYTES) / len(payload)))
                reply, data = self._receive(answer_s)
                clock = ClockBounds.of(reply, sent_s=sent_s, arrived_s=time.time()).within(self._clock)
                self._clock = clock
            except (TimeoutError, ChannelClosed, Unreachable) as error:
                self._drop()
                raise self._lost(error, answer_s) from error
            except BaseException:  # Ctrl-C in the middle of a frame
                self._drop()
                raise
        self._require_ok(reply, hint)
        return TimedReply(cast("ReplyT", reply), data, clock)

    def close(self) -> None:
        """End the program; agents continue."""
        self._drop()
        self._transport.close()

    def _start_program(self) -> None:
        """Start the program, and get the facts of the node from its first reply."""
        try:
            channel = self._channel = self._transport.open([self._python, *FLAGS])
            self._reader = ChannelReader(channel)
            sent_s = time.time()
            version = self._send_program(channel)
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
                raise NodeError(self.node, f"Python {version} is too old: {self._python}", hint=PYTHON_HINT)
            reply, _ = self._receive(ANSWER_S)
            self._clock = ClockBounds.of(reply, sent_s=sent_s, arrived_s=time.time())
            self._require_ok(reply)
        except ChannelClosed as closed:
            printed = self._reader.peek() if self._channel is not None else ""
            raise start_failure(self._transport, self._python, closed, printed) from closed
        except TimeoutError as error:
            hint = f"see what the node prints for {self._transport.command_to_try([self._python, '--version'])}"
            raise Unreachable(self.node, f"no answer for {ANSWER_S:g} s", hint=hint) from error
        except NoMarker as error:
            reason = f"{self._python} did not start: the login shell printed {str(error)!r}"
            hint = "its start-up files should print nothing without a terminal"
            raise NodeError(self.node, reason, hint=hint) from error
        self.facts = Facts(**cast("messages.HelloReply", reply)["facts"])

    def _send_program(self, channel: Channel) -> str:
        """Send the program and the first request together; return the version that Python reports."""
        request: messages.RequestHeader = {"op": protocol.HELLO, "bytes": 0}
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

    def _require_ok(self, reply: messages.ReplyHeader, hint: str = "") -> None:
        if not reply["ok"]:
            error = cast("messages.ErrorBody", reply)
            kind = RendezvousPortTaken if error["kind"] == protocol.HeadPortTaken.__name__ else NodeError
            raise kind(self.node, error["message"], hint=hint)

    def _drop(self) -> None:
        """Close the channel: a late reply would be taken for the reply to the next request."""
        channel = self._channel
        self._channel = None  # before the close, which may wait for the program, and which another thread may begin
        if channel is not None:
            channel.close()

    def _receive(self, timeout_s: float) -> tuple[messages.ReplyHeader, bytes]:
        length = int.from_bytes(self._reader.read_exactly(4, timeout_s=timeout_s), "big")
        if length > HEADER_LIMIT_BYTES:
            raise ChannelClosed(None, f"a frame header of {length} bytes")
        try:
            reply: messages.ReplyHeader = json.loads(self._reader.read_exactly(length, timeout_s=timeout_s))
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
