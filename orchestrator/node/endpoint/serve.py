"""
The program that serves a controller on a node: framed requests on stdin, framed replies on stdout, gone when stdin ends.

A frame is a 4-byte big-endian length, a JSON object and, where the object says "bytes": n, n raw bytes. What is pushed is
in push.py, what is reported in report.py, what is stopped in stop.py; the controller sends them all when it connects, nothing is
installed. What most connections do without is imported by the request that wants it: that is milliseconds on every node.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time

from orchestrator.node.endpoint.push import prepare, put_bundle, put_files
from orchestrator.node.endpoint.report import Reader, files, find, observe, reach, supervise
from orchestrator.node.endpoint.start import Starter
from orchestrator.node.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, BinaryIO, Callable, Dict, Optional, Tuple

    Json = Dict[str, Any]
    Op = Callable[[Json, bytes], Tuple[Json, bytes]]

HEADER_LIMIT = 16 << 20
SIZE_BYTES = 4
IDLE_S = 900
SUPERVISOR_IDLE_S = 60  # its beats come every few seconds


def read_frame(stream: BinaryIO) -> Optional[Tuple[Json, bytes]]:
    """The next frame, or None when the stream ends, be it in the middle of one."""
    size = stream.read(SIZE_BYTES)
    if len(size) < SIZE_BYTES:
        return None
    length = int.from_bytes(size, "big")
    if length > HEADER_LIMIT:
        raise ValueError(f"a frame header of {length} bytes")
    text = stream.read(length)
    if len(text) < length:
        return None
    header = json.loads(text)
    payload = stream.read(header.get("bytes", 0))
    return (header, payload) if len(payload) == header.get("bytes", 0) else None


def write_frame(out: int, header: Json, payload: bytes = b"") -> None:
    """Write one frame to a file descriptor."""
    if payload:
        header = dict(header, bytes=len(payload))
    text = json.dumps(header).encode()
    rest = memoryview(len(text).to_bytes(SIZE_BYTES, "big") + text + payload)
    while rest:
        rest = rest[os.write(out, rest) :]


def user_name() -> str:
    """Who runs this; a container's user may have no name."""
    import pwd  # noqa: PLC0415  only Unix has it, and only here it is used

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def cards(folder: str = "/dev") -> Dict[str, int]:
    """How many cards of each kind have a device file: what there is, without asking a vendor's tool that may hang."""
    names = os.listdir(folder)
    kinds = {"cuda": "nvidia", "gcu": "gcu"}
    return {
        kind: sum(1 for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit())
        for kind, prefix in kinds.items()
    }


def hello(_request: Json, _payload: bytes) -> Tuple[Json, bytes]:
    """Say what this machine and this interpreter are."""
    facts = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "hostname": os.uname().nodename,
        "host_id": host_id(),
        "home": os.path.expanduser("~"),
        "user": user_name(),
        "cards": cards(),
        "pid": os.getpid(),
        "time": time.time(),
    }
    return {"facts": facts}, b""


class Reservation:
    """Keeps the rendezvous port for as long as this program runs; by then the head's agent has bound it too."""

    def __init__(self) -> None:
        self.holder: Optional[socket.socket] = None

    def reserve(self, request: Json, _payload: bytes) -> Tuple[Json, bytes]:
        """Find an address of this host, best of the candidates, and a free port."""
        from orchestrator.node.rendezvous import reserve  # noqa: PLC0415  only the head is asked

        record, self.holder = reserve(request["candidates"], dict(os.environ, **request["interfaces"]))
        return {"rendezvous": record}, b""


def later(module: str, name: str, **fixed: object) -> Op:
    """A request whose module most connections do without; `fixed` is added to what is asked."""

    def op(request: Json, payload: bytes) -> Tuple[Json, bytes]:
        handler: Op = getattr(importlib.import_module(f"orchestrator.node.endpoint.{module}"), name)
        return handler(dict(request, **fixed), payload)

    return op


def describe(error: BaseException) -> Json:
    """An exception as a reply; an OSError as 'path: reason', without its number."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return {"ok": False, "kind": type(error).__name__, "message": message}


def serve(stream: BinaryIO) -> None:
    """Answer requests until the stream ends."""
    umask = os.umask(0o077)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else prints must not break the frames
    starter = Starter(umask)
    ops: Dict[str, Op] = {
        "hello": hello,
        "prepare": prepare,
        "put_bundle": put_bundle,
        "put_files": put_files,
        "reserve": Reservation().reserve,
        "start": starter.start,
        "files": files,
        "read": Reader().read,
        "observe": observe,
        "find": find,
        "supervise": supervise,
        "reach": reach,
        "stop": later("stop", "stop"),
        "file_system": later("file_system", "file_system"),
        "strays": later("strays", "strays"),
        "clear": later("garbage", "clear"),
        "command": later("command", "command", umask=umask),
        "command_once": later("command", "command_once", umask=umask),
    }
    idle_s = IDLE_S
    while True:
        signal.alarm(idle_s)  # a cut cable closes no stream, and sshd may wait for hours: SIGALRM ends this then
        frame = read_frame(stream)
        signal.alarm(0)
        if frame is None:
            return
        begun = time.monotonic()
        starter.reap()
        request, payload = frame
        idle_s = SUPERVISOR_IDLE_S if request.get("op") == "supervise" else IDLE_S
        try:
            if request.get("op") not in ops:
                raise ValueError(f"no such request: {request.get('op')!r}")
            reply, data = ops[request["op"]](request, payload)
            reply["ok"] = True
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the controller's to hear, in a frame
            reply, data = describe(error), b""
        try:
            write_frame(out, dict(reply, held_s=time.monotonic() - begun), data)
        except BrokenPipeError:
            return
