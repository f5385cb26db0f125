"""
The program that serves a controller on a node: requests on stdin, replies on stdout, until stdin ends.

A request that waits for something to happen on the node delays no other: its reply follows later, with the number of the request.
The controller sends this program when it connects; nothing is installed. The module that answers a request is imported by the first
such request: most connections need few of them, and this saves milliseconds on every node.
"""

from __future__ import annotations

import os
import sys
import time

from orchestrator.node.cards import count_cards
from orchestrator.node.endpoint.frames import Requests, write_frame
from orchestrator.node.endpoint.start import Starter
from orchestrator.node.protocol.operations import HEARTBEAT, HELLO, STAND_BY, START, STOP, answers
from orchestrator.node.run.events import Clock
from orchestrator.node.system.files import error_text, user_name
from orchestrator.node.system.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any, Dict, List, Tuple, Union

    from orchestrator.node.protocol.connection import (
        Empty,
        ErrorBody,
        FactsBody,
        HelloReply,
        ReplyHeader,
        RequestHeader,
    )
    from orchestrator.node.protocol.operations import Steps

IDLE_S = 900  # a lost connection does not end the stream until sshd notices, maybe hours later
SUPERVISOR_IDLE_S = 60  # heartbeats come every few seconds
MODULES = {
    "push": "prepare put_bundle put_run put_files",
    "parts": "lacking put_part",
    "ports": "reserve listen stop_listening",
    "report": "files observe find heartbeat reach connect ranks",
    "positions": "last_lines lines_since",
    "reading": "read follow",
    "search": "search",
    "fetch": "list_files read_file",
    "stop": "stop",
    "save": "request_save",
    "garbage": "active_runs clear",
    "strays": "strays",
    "holders": "holders",
    "shared_folder": "file_system write_marker find_marker remove_marker",
    "command": "command command_once",
    "incoming": "claim_folder release_folder offer digest put_pieces keep_time finish",
    "forward": "forward forwarded",
    "board": "board_start board_connect board_send board_receive board_close",
}
"""The modules of this package, and the operations of protocol/operations.py that they answer; START and STAND_BY are the Starter's."""


@answers(HELLO)
def hello(_request: Empty, _payload: bytes) -> Tuple[HelloReply, bytes]:
    facts: FactsBody = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "hostname": os.uname().nodename,
        "host_id": host_id(),
        "home": os.path.expanduser("~"),
        "user": user_name(),
        "cards": count_cards(),
        "pid": os.getpid(),
        "clock_ahead_s": Clock().ahead_s,
    }
    return {"facts": facts}, b""


class Handlers:
    """The functions that answer operations; those of the modules in `_make_owner` are methods of an object that lives as long as the connection."""

    def __init__(self, starter: Starter, umask: int) -> None:
        self._by_op: Dict[object, Any] = {HELLO: hello, START: starter.start, STAND_BY: starter.stand_by}
        self._module_of: Dict[object, str] = {op: name for name, ops in MODULES.items() for op in ops.split()}
        self._make_owner = {
            "ports": lambda module: module.Ports(),
            "reading": lambda module: module.LogFiles(),
            "command": lambda module: module.Commands(umask),
            "incoming": lambda module: module.Incoming(),
            "forward": lambda module: module.Forwarding(),
            "board": lambda module: module.Board(),
        }

    def answer(self, request: RequestHeader, payload: Union[bytes, bytearray]) -> Steps[Dict[str, object]]:
        """Handle a request; return the reply. Any exception becomes an error reply, which the controller reports."""
        begun, ok = time.monotonic(), True
        try:
            answer = self.handler(request.get("op"))(request, payload)
            reply, data = answer if isinstance(answer, tuple) else (yield from answer)
        except Exception as error:  # noqa: BLE001  see above
            body: ErrorBody = {"kind": type(error).__name__, "message": error_text(error)}
            reply, data, ok = body, b"", False
        now = time.monotonic()
        header: ReplyHeader = {
            "number": request["number"],
            "ok": ok,
            "held_s": now - begun,
            "monotonic_s": now,
            "bytes": len(data),
        }
        return dict(reply, **header), data

    def handler(self, op: object) -> Any:  # noqa: ANN401  of some Request and Reply
        """The function that answers an operation; ValueError if there is no such operation."""
        if op not in self._by_op:
            name = self._module_of.get(op)
            if name is None:
                raise ValueError(f"no such request: {op!r}")
            module = __import__(f"orchestrator.node.endpoint.{name}", fromlist=[name])
            owner = self._make_owner[name](module) if name in self._make_owner else module
            self._by_op.update({each: getattr(owner, each) for each in MODULES[name].split()})
        return self._by_op[op]


class InProgress:
    """A request that is being answered, and when to continue with it."""

    def __init__(self, op: object, steps: Steps[Dict[str, object]]) -> None:
        self.op, self.steps = op, steps
        self.due_s = 0.0


def serve(stream: BufferedReader) -> None:
    """Answer requests until the stream ends."""
    umask = os.umask(0o077)
    out = os.dup(1)
    os.dup2(2, 1)  # other output on stdout must not break the frames
    starter = Starter(umask)
    waiting: List[InProgress] = []
    try:
        answer_all(Requests(stream), Handlers(starter, umask), starter, out, waiting=waiting)
    except (EOFError, BrokenPipeError):
        for request in waiting:
            if request.op == STOP:  # also without its controller, it kills what ignores SIGTERM
                for pause_s in request.steps:
                    time.sleep(pause_s)


def answer_all(
    requests: Requests, handlers: Handlers, starter: Starter, out: int, *, waiting: List[InProgress]
) -> None:
    """Answer requests until none has arrived for too long; `waiting` has those that are not answered yet."""
    idle_s = IDLE_S
    while True:
        now = time.monotonic()
        frame = requests.next(min((request.due_s - now for request in waiting), default=idle_s))
        if frame is not None:
            starter.reap()
            op = frame[0].get("op")
            if op == HEARTBEAT:
                idle_s = SUPERVISOR_IDLE_S
            waiting.append(InProgress(op, handlers.answer(*frame)))
        elif not waiting and time.monotonic() - now >= idle_s:
            return
        now = time.monotonic()
        for request in [request for request in waiting if request.due_s <= now]:
            try:
                request.due_s = time.monotonic() + next(request.steps)
            except StopIteration as end:
                waiting.remove(request)
                write_frame(out, *end.value)
