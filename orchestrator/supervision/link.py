"""
The link between the process that owns a run and its viewer: frames over a socket pair, which the owner inherits.

A frame has two sizes, a JSON message, and the text of log lines as bytes. Nothing listens. The owner waits for a slow viewer only
where it writes log lines, in a thread of their own; supervision never does.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from orchestrator.logs.lines import LogLines
from orchestrator.progress import Progress

if TYPE_CHECKING:
    from orchestrator.verdict.live_run import LiveRun  # at run time it would load what the viewer does not need

SIZES = struct.Struct(">II")
"""The sizes in bytes of the JSON message of a frame and of the text after the message."""
FRAME_CHARACTERS = 1 << 19  # of log lines in one frame, unless one line is longer
ANSWER_S = 120.0  # for a prompt during supervision, as sshd waits for a login (LoginGraceTime)
MOST_WAITING = 4  # frames of log lines, so that memory stays bounded while the viewer is stopped


class ViewerGone(Exception):
    """The viewer has ended, or has closed the link."""


def frame(message: Mapping[str, Any], text: bytes = b"") -> bytes:
    """A message as bytes, and after it the text of log lines."""
    encoded = json.dumps(message).encode()
    return b"".join((SIZES.pack(len(encoded), len(text)), encoded, text))


def lines_frame(lines: Sequence[LogLines]) -> bytes:
    """
    A message with log lines. Their text is not part of the JSON.

    For 800,000 lines both ends need 0.04 s of CPU time; escaped as JSON, the text took 0.16 s.
    """
    texts = [group.text.encode("utf-8", "surrogatepass") for group in lines]
    groups = [
        (group.time, group.node, group.rank, group.stream, len(text), *map(int, _flags(group)))
        for group, text in zip(lines, texts, strict=True)
    ]
    return frame({"kind": "lines", "lines": groups}, b"".join(texts))


def messages(link: socket.socket) -> Generator[dict[str, Any], None, None]:
    """The messages that arrive, until the other end is closed, also within a frame; `lines` are LogLines."""
    with link.makefile("rb") as stream:
        while len(sizes := stream.read(SIZES.size)) == SIZES.size:
            message_size, text_size = SIZES.unpack(sizes)
            data = stream.read(message_size + text_size)
            if len(data) < message_size + text_size:
                return
            message: dict[str, Any] = json.loads(data[:message_size])
            if "lines" in message:
                message["lines"] = _log_lines(message["lines"], data[message_size:])
            yield message


def _flags(group: LogLines) -> tuple[bool, bool, bool]:
    return group.is_continuation, group.is_routine, group.is_unfinished


def _log_lines(groups: Iterable[Sequence[Any]], text: bytes) -> list[LogLines]:
    lines, start = [], 0
    for time_, node, rank, stream, size, *flags in groups:
        end = start + size
        part = text[start:end].decode("utf-8", "surrogatepass")
        lines.append(LogLines(time_, node, rank, stream, part, *map(bool, flags)))
        start = end
    return lines


class OwnerLink:
    """The owner's end. Everything that is sent after the viewer has gone is discarded."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._received = messages(link)
        self.request = next(self._received, {})
        """The first message of the viewer."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[bytes, bool]] = deque()
        """Frames to send, and whether they have log lines."""
        self._newest: dict[str, bytes] = {}
        """The newest progress, and the newest state of the run, that are not sent yet; older ones are of no use."""
        self._is_open = True
        self._has_ended = False
        self.answer_s: float | None = None
        """How long the user has for an answer; None without a limit."""
        self._questions = 0
        self._answers: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
        """The answers by number: the viewer answers all questions in turn."""
        self._receiver = threading.Thread(target=self._receive, name="from viewer", daemon=True)
        self._receiver.start()
        self._sender = threading.Thread(target=self._send, name="to viewer", daemon=True)
        self._sender.start()

    @property
    def is_open(self) -> bool:
        """True while there is a viewer."""
        return self._is_open

    def post(self, kind: str, **fields: object) -> None:
        """Send a message, without waiting for the viewer."""
        self._add(frame({"kind": kind, **fields}), has_lines=False)

    def progress(self, progress: Progress) -> None:
        """Send the progress, unless a newer one follows before the viewer has read the last."""
        self._replace("progress", asdict(progress))

    def show(self, live: LiveRun | None) -> None:
        """Send the present state of the run, unless a newer one follows before the viewer has read the last."""
        if live is not None:
            self._replace("live", {"live": live.to_json()})

    def inform(self, text: str) -> None:
        """Show a message."""
        self.post("inform", text=text)

    def warn(self, text: str) -> None:
        """Show a warning."""
        self.post("warning", text=text)

    def write(self, lines: Iterable[LogLines]) -> None:
        """
        Show log lines; wait while the viewer is slow. A viewer that folds lines gets a message without lines, too: some may be due.

        Raises:
            ViewerGone: there is no viewer, even if there are no lines.
        """
        groups: list[LogLines] = []
        size = 0
        for group in lines:
            groups.append(group)
            size += len(group.text)
            if size >= FRAME_CHARACTERS:
                self._write(groups)
                groups, size = [], 0
        self._write(groups)

    def _write(self, groups: Sequence[LogLines]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_open or sum(has_lines for _, has_lines in self._waiting) < MOST_WAITING
            )
        if not self._is_open:
            raise ViewerGone
        if groups or self.request.get("fold"):
            self._add(lines_frame(groups), has_lines=True)

    def answer_to(self, question: str, *, echo: bool) -> bytes | None:
        """Let the user answer a question; None if the user cancels it or gives no answer in time, or there is no viewer."""
        self._questions += 1
        self.post("question", question=question, echo=echo)
        end = None if self.answer_s is None else time.monotonic() + self.answer_s
        while self._is_open:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            try:
                number, text = self._answers.get(timeout=left_s)
            except Empty:
                return None
            if number == self._questions:  # else a late answer to an earlier question
                return text
        return None

    def end(self) -> None:
        """Close the link once everything is sent; do not wait for that."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def join(self) -> None:
        """Close the link, and wait until everything is sent."""
        self.end()
        self._sender.join()
        self._receiver.join()
        self._received.close()
        self._link.close()

    def _replace(self, kind: str, fields: Mapping[str, Any]) -> None:
        with self._changed:
            self._newest[kind] = frame({"kind": kind, **fields})
            self._changed.notify_all()

    def _add(self, data: bytes, *, has_lines: bool) -> None:
        with self._changed:
            if self._is_open and not self._has_ended:
                self._waiting.append((data, has_lines))
                self._changed.notify_all()

    def _send(self) -> None:
        while (data := self._next()) is not None:
            try:
                self._link.sendall(data)
            except OSError:
                break
        self._lost()

    def _next(self) -> bytes | None:
        """The next frame to send; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._newest or self._has_ended or not self._is_open)
            if not self._is_open:
                return None
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()[0]
            return self._newest.pop(next(iter(self._newest))) if self._newest else None

    def _receive(self) -> None:
        try:
            for number, message in enumerate(self._received, 1):
                answer = message["answer"]
                self._answers.put((number, None if answer is None else base64.b64decode(answer)))
        except OSError:
            pass
        finally:
            self._lost()

    def _lost(self) -> None:
        with self._changed:
            self._is_open = False
            self._waiting.clear()
            self._changed.notify_all()
        self._answers.put((0, None))  # wakes `answer_to`
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:  # the viewer has gone
            return


def answer(link: socket.socket, text: bytes | None) -> None:
    """Send the user's answer to a question; None if it was cancelled."""
    link.sendall(frame({"answer": None if text is None else base64.b64encode(text).decode()}))
