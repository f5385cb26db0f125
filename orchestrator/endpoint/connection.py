"""One connection to a node: starts node/endpoint/ over any transport, and exchanges requests and replies."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from orchestrator.endpoint.clock import ClockBounds
from orchestrator.endpoint.program import FLAGS, MARKER, OLDEST_PYTHON, program
from orchestrator.endpoint.replies import Facts
from orchestrator.endpoint.start_failure import python_hint, start_failure
from orchestrator.errors import NodeError, Unreachable, machine_error
from orchestrator.node.protocol import operations
from orchestrator.progress import OnShare, no_progress
from orchestrator.transports.base import Channel, ChannelClosed, ChannelReader, NoMarker, Transport

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from orchestrator.node.protocol.connection import ErrorBody, HelloReply, ReplyHeader, RequestHeader
    from orchestrator.node.protocol.operations import Op

ANSWER_S = 30.0
HELLO_NUMBER = 0
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


@dataclass(frozen=True, slots=True)
class Begun(Generic[ReplyT]):
    """A request that was sent: its number, and when, in seconds since the epoch."""

    number: int
    sent_s: float


def frame(request: Mapping[str, object]) -> bytes:
    """A request as bytes, without the payload that follows it."""
    text = json.dumps(request).encode()
    return len(text).to_bytes(4, "big") + text


@dataclass(frozen=True, slots=True)
class Arrived:
    """A reply that was received, and when, in seconds since the epoch."""

    header: ReplyHeader
    payload: bytes
    time_s: float


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version of Python; NoMarker if it is none, as of a program that prints what it reads."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError as error:
        raise NoMarker(version) from error


REPLY_S = 0.25
FIRST_BYTES, LEAST_BYTES, MOST_BYTES = 1 << 18, 1 << 13, 1 << 22


class ReplySize:
    """
    The number of bytes that a link carries in REPLY_S, by the replies that arrived.

    A node writes its replies one after the other: a long one on a slow link would delay the reply to a heartbeat.
    """

    def __init__(self) -> None:
        self.bytes = FIRST_BYTES

    def add(self, size: int, elapsed_s: float) -> None:
        """Take into account a reply of `size` bytes that took `elapsed_s` from its first to its last byte."""
        if 2 * size >= self.bytes or elapsed_s > REPLY_S:  # a short reply shows no more than that the link is slow
            fitting = int(size * REPLY_S / elapsed_s) if elapsed_s > 0 else MOST_BYTES
            self.bytes = max(LEAST_BYTES, min(fitting, 2 * self.bytes, MOST_BYTES))


class Connection:
    """
    The program on a node and the channel to it; closing the connection closes the transport, too.

    One request at a time: other threads wait. Only requests that wait for something on the node, made by `call_waiting`, are in
    progress beside others. Every failure is a NodeError; Unreachable if the node did not answer.
    """

    facts: Facts
    _clock: ClockBounds

    def __init__(self, transport: Transport, python: str) -> None:
        self._transport = transport
        self.node = transport.node
        self.python = python
        """The node's Python, which runs the program."""
        self.reply_size = ReplySize()
        self._one_request = threading.Lock()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        """Guards `_is_receiving`, `_unanswered`, `_arrived` and `_failure`, which all threads with a request share."""
        self._is_receiving = False
        """A thread receives replies, its own and those of the others."""
        self._unanswered: set[int] = set()
        self._arrived: dict[int, Arrived] = {}
        self._failure: NodeError | None = None
        """Why the channel was closed."""
        self._numbers = itertools.count(1)
        self._channel: Channel | None = None
        self._reader: ChannelReader

    def open(self) -> None:
        """Start the program on the node; on failure close the connection."""
        try:
            self._start_program()
        except BaseException as error:
            self.close()
            if failure := machine_error(error):  # such as no more threads: it may be possible later
                raise Unreachable(self.node, str(failure), hint=failure.hint) from error
            raise

    @property
    def remark(self) -> str:
        return self._transport.remark

    @property
    def queued_s(self) -> float:
        return self._transport.queued_s

    @property
    def connected(self) -> bool:
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
        with self._one_request:
            return self.end(self.begin(op, request, payload, on_sent=on_sent), answer_s=answer_s, hint=hint)

    def call_waiting(self, op: Op[RequestT, ReplyT], request: RequestT, *, answer_s: float) -> TimedReply[ReplyT]:
        """Make a request that is answered when something has happened on the node; others are made meanwhile."""
        return self.end(self.begin(op, request), answer_s=answer_s)

    def begin(
        self, op: Op[RequestT, ReplyT], request: RequestT, payload: bytes = b"", *, on_sent: OnShare = no_progress
    ) -> Begun[ReplyT]:
        """Send a request, whose reply `end` returns: several may be in flight, which keeps a long way to the node busy."""
        number = next(self._numbers)
        header: RequestHeader = {"op": op, "number": number, "bytes": len(payload)}
        channel = self._channel  # another thread may close the connection
        if channel is None:
            raise Unreachable(self.node, "the connection is closed")
        with self._dropped_on_failure(ANSWER_S), self._sending:
            sent_s = time.time()
            self._unanswered.add(number)
            channel.write(frame({**header, **cast("Mapping[str, object]", request)}), timeout_s=ANSWER_S)
            for start in range(0, len(payload), PART_BYTES):  # in parts: all nodes may get the same payload
                channel.write(payload[start : start + PART_BYTES], timeout_s=ANSWER_S)
                on_sent(min(1.0, (start + PART_BYTES) / len(payload)))
        return Begun(number, sent_s)

    def end(self, begun: Begun[ReplyT], *, answer_s: float = ANSWER_S, hint: str = "") -> TimedReply[ReplyT]:
        """Wait for the reply to a request that has begun."""
        with self._dropped_on_failure(answer_s):
            arrived = self._reply_to(begun.number, answer_s)
        reply = arrived.header
        clock = ClockBounds.of(reply, sent_s=begun.sent_s, arrived_s=arrived.time_s).within(self._clock)
        self._clock = clock
        self._require_ok(reply, hint)
        return TimedReply(cast("ReplyT", reply), arrived.payload, clock)

    @contextmanager
    def _dropped_on_failure(self, answer_s: float) -> Iterator[None]:
        """Drop the connection if a request or a reply is cut; the first failure is raised."""
        try:
            yield
        except (TimeoutError, ChannelClosed, Unreachable) as error:
            failure = self._first_failure(error, answer_s)
            self._drop()
            raise failure from error
        except BaseException:  # Ctrl-C in the middle of a frame
            self._drop()
            raise

    def _reply_to(self, number: int, answer_s: float) -> Arrived:
        """
        Wait for a reply, at most answer_s after the last byte from the node. One of the waiting threads receives those of all.

        The node writes its replies one after the other: a long one that is still arriving delays those of other threads.
        """
        sent_s = time.monotonic()

        def left_s() -> float:
            return max(sent_s, self._reader.arrived_s) + answer_s - time.monotonic()

        while True:
            with self._changed:
                while self._is_receiving and number not in self._arrived:
                    if (timeout_s := left_s()) <= 0:
                        raise TimeoutError
                    self._changed.wait(timeout_s)
                if number in self._arrived:
                    return self._arrived.pop(number)
                if self._failure is not None:
                    raise self._failure
                self._is_receiving = True
            try:
                self._receive(max(0.0, left_s()))
            except BaseException as error:
                self._first_failure(error, answer_s)
                raise
            finally:
                with self._changed:
                    self._is_receiving = False
                    self._changed.notify_all()

    def close(self) -> None:
        """End the program; agents continue."""
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
            channel = self._channel = self._transport.open([self.python, *FLAGS])
            self._reader = ChannelReader(channel)
            sent_s = time.time()
            version = self._send_program(channel)
            if _numbers(version) < OLDEST_PYTHON:
                hint = python_hint(self._transport)
                raise NodeError(self.node, f"Python {version} is too old: {self.python}", hint=hint)
            arrived = self._reply_to(HELLO_NUMBER, ANSWER_S)
            reply = arrived.header
            self._clock = ClockBounds.of(reply, sent_s=sent_s, arrived_s=arrived.time_s)
            self._require_ok(reply)
        except ChannelClosed as closed:
            printed = self._reader.peek() if self._channel is not None else ""
            raise start_failure(self._transport, self.python, closed, printed) from closed
        except TimeoutError as error:
            hint = f"see what the node prints for {self._transport.command_to_try([self.python, '--version'])}"
            raise Unreachable(self.node, f"no answer for {ANSWER_S:g} s", hint=hint) from error
        except NoMarker as error:
            reason = f"{self.python} did not start: the login shell printed {str(error)!r}"
            hint = "its start-up files should print nothing without a terminal"
            raise NodeError(self.node, reason, hint=hint) from error
        try:
            self.facts = Facts(**cast("HelloReply", reply)["facts"])
        except (KeyError, TypeError) as error:
            raise NodeError(self.node, f"the node's first answer cannot be read: {error}") from error

    def _send_program(self, channel: Channel) -> str:
        """Send the program and the first request together; return the version that Python reports."""
        request: RequestHeader = {"op": operations.HELLO, "number": HELLO_NUMBER, "bytes": 0}
        answer_s = ANSWER_S
        self._unanswered.add(HELLO_NUMBER)
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

    def _require_ok(self, reply: ReplyHeader, hint: str = "") -> None:
        if not reply["ok"]:
            error = cast("ErrorBody", reply)
            kind = RendezvousPortTaken if error["kind"] == operations.HeadPortTaken.__name__ else NodeError
            raise kind(self.node, error["message"], hint=hint)

    def _drop(self) -> None:
        """Close the channel: a late reply would be taken for the reply to the next request."""
        channel = self._channel
        self._channel = None  # before the close, which may wait for the program, and which another thread may begin
        if channel is not None:
            channel.close()

    def _receive(self, timeout_s: float) -> None:
        """Receive one reply, which must begin within timeout_s."""
        length = int.from_bytes(self._reader.read_exactly(4, timeout_s=timeout_s), "big")
        if length > HEADER_LIMIT_BYTES:
            raise ChannelClosed(None, f"a frame header of {length} bytes")
        begun = time.monotonic()
        try:
            reply: ReplyHeader = json.loads(self._reader.read_exactly(length, timeout_s=ANSWER_S))
            number, size = reply["number"], reply["bytes"]
            # a key that every reply has may be missing, or have a value of another type
            texts = () if reply["ok"] else tuple(cast("ErrorBody", reply)[key] for key in ("kind", "message"))
            if not (all(isinstance(text, str) for text in texts) and size >= 0 and reply["held_s"] >= 0.0):
                raise ValueError
            float(reply["monotonic_s"])
            self._unanswered.remove(number)
        except (ValueError, TypeError, KeyError) as error:
            raise ChannelClosed(None, "a frame header that is not that of a reply") from error
        payload = self._reader.read_exactly(size, timeout_s=ANSWER_S)
        self.reply_size.add(size, time.monotonic() - begun)
        self._arrived[number] = Arrived(reply, payload, time.time())

    def _first_failure(self, error: BaseException, answer_s: float) -> NodeError:
        """Keep the first failure, which the other threads report too, and return it."""
        if self._failure is None and isinstance(error, Unreachable):
            self._failure = error
        elif self._failure is None:
            reason = f"no answer for {answer_s:g} s" if isinstance(error, TimeoutError) else "the connection is closed"
            if isinstance(error, ChannelClosed):
                last = (error.stderr.strip().splitlines() or ["the connection was closed"])[-1]
                reason = f"the endpoint ended, exit status {error.exit_status}: {last}"
            self._failure = Unreachable(self.node, reason)
        return self._failure
