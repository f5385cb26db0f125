"""
The program that serves a controller on a node: requests on stdin, replies on stdout, until stdin ends.

A request that waits for something to happen on the node delays no other: its reply follows later, with the number of the request.
The controller sends this program when it connects; nothing is installed.
"""

from __future__ import annotations

import os
import time

from orchestrator.node.endpoint.frames import Requests, write_frame
from orchestrator.node.endpoint.handlers import Handlers
from orchestrator.node.endpoint.start import Starter
from orchestrator.node.protocol.operations import HEARTBEAT, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Dict, List

    from orchestrator.node.protocol.operations import Steps

IDLE_S = 900  # a lost connection does not end the stream until sshd notices, maybe hours later
SUPERVISOR_IDLE_S = 60  # heartbeats come every few seconds


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
