"""TensorBoard on this node, for as long as the controller is connected, and the connections of browsers to it."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

from orchestrator.node.endpoint.fetch import run_folders
from orchestrator.node.protocol.operations import (
    BOARD_CLOSE,
    BOARD_CONNECT,
    BOARD_RECEIVE,
    BOARD_SEND,
    BOARD_START,
    answers,
)
from orchestrator.node.system.processes import PR_SET_PDEATHSIG, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from orchestrator.node.protocol.board import (
        BoardReply,
        BoardRequest,
        ConnectionRequest,
        OpenedReply,
        ReceiveReply,
        ReceiveRequest,
    )
    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.operations import Steps

EVENTS = "events.out.tfevents"
START_POLL_S, POLL_S = 0.1, 0.02
RECEIVED_BYTES = 1 << 18
CONNECT_S = 5.0
WITH_SETUP = '. "$0" >/dev/null 2>&1; exec "$@"'


class Board:
    """The program that this connection has started, and the connections to it by number."""

    def __init__(self) -> None:
        self._port = 0
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._sockets: Dict[int, socket.socket] = {}
        self._count = 0

    @answers(BOARD_START)
    def board_start(self, request: BoardRequest, _payload: bytes) -> Steps[BoardReply]:
        """Start TensorBoard on the folders of the run that have event files, bound to loopback; wait for its port."""
        roots = run_folders({"attempt_dir": request["attempt_dir"], "nodes": None})
        found = [folder for folder in map(events_folder, roots) if folder]
        if not found:
            return {"folders": [], "port": 0, "error": f"no {EVENTS}* below {', '.join(roots)}"}, b""
        logs = ",".join(f"{os.path.basename(folder) or folder}:{folder}" for folder in found)
        log_option = f"--logdir={found[0]}" if len(found) == 1 else f"--logdir_spec={logs}"
        argv = [request["python"], "-m", "tensorboard.main", log_option, "--host=127.0.0.1", "--port=0"]
        if request["setup"]:
            argv = ["sh", "-c", WITH_SETUP, request["setup"], *argv]
        with tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_parent,  # noqa: PLW1509  it calls one function of the kernel
            )
            deadline = time.monotonic() + request["wait_s"]
            while self._process.poll() is None and time.monotonic() < deadline:
                yield START_POLL_S
                self._port = port_in(printed(output))
                if self._port:
                    return {"folders": found, "port": self._port, "error": ""}, b""
            self._process.kill()
            return {"folders": found, "port": 0, "error": printed(output)}, b""

    @answers(BOARD_CONNECT)
    def board_connect(self, _request: Empty, _payload: bytes) -> Tuple[OpenedReply, bytes]:
        self._count += 1
        self._sockets[self._count] = socket.create_connection(("127.0.0.1", self._port), CONNECT_S)
        return {"connection": self._count}, b""

    @answers(BOARD_SEND)
    def board_send(self, request: ConnectionRequest, payload: bytes) -> Tuple[Empty, bytes]:
        self._sockets[request["connection"]].sendall(payload)
        return {}, b""

    @answers(BOARD_RECEIVE)
    def board_receive(self, request: ReceiveRequest, _payload: bytes) -> Steps[ReceiveReply]:
        """The bytes that have arrived, after at most wait_s; none once the connection has ended."""
        connection = self._sockets.get(request["connection"])
        deadline = time.monotonic() + request["wait_s"]
        while connection is not None and not select.select([connection], [], [], 0)[0]:
            if time.monotonic() > deadline:
                return {"is_open": True}, b""
            yield POLL_S
        try:
            data = b"" if connection is None else connection.recv(RECEIVED_BYTES)
        except OSError:  # closed meanwhile
            data = b""
        return {"is_open": bool(data)}, data

    @answers(BOARD_CLOSE)
    def board_close(self, request: ConnectionRequest, _payload: bytes) -> Tuple[Empty, bytes]:
        connection = self._sockets.pop(request["connection"], None)
        if connection is not None:
            connection.close()
        return {}, b""


def events_folder(root: str) -> str:
    """The folder at or below the root that contains all event files; empty if there are none."""
    found = [folder for folder, _, names in os.walk(root) if any(name.startswith(EVENTS) for name in names)]
    return os.path.commonpath(found) if found else ""


def printed(output: object) -> str:
    descriptor = output.fileno()  # type: ignore[attr-defined]  # of a file that has no public class
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 1 << 16, max(0, size - (1 << 16))).decode("utf-8", "replace")


def port_in(text: str) -> int:
    found = re.search(r"http://(?:127\.0\.0\.1|localhost):(\d+)", text)
    return int(found.group(1)) if found else 0


def end_with_parent() -> None:
    """In the child: end it with this program, however that ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
