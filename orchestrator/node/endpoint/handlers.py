"""
The function that answers each operation of protocol.py.

Modules that most connections do not need are imported by the request that needs them, which saves milliseconds on every node.
"""

from __future__ import annotations

import os
import sys
import time

from orchestrator.node.cards import count_cards
from orchestrator.node.endpoint.push import prepare, put_bundle, put_files, put_run
from orchestrator.node.endpoint.report import connect, files, find, heartbeat, observe, reach
from orchestrator.node.protocol.operations import (
    ACTIVE_RUNS,
    CLEAR,
    COMMAND,
    COMMAND_ONCE,
    CONNECT,
    FILE_SYSTEM,
    FILES,
    FIND,
    FIND_MARKER,
    FOLLOW,
    HEARTBEAT,
    HELLO,
    LACKING,
    LAST_LINES,
    LINES_SINCE,
    LIST_FILES,
    LISTEN,
    OBSERVE,
    PREPARE,
    PUT_BUNDLE,
    PUT_FILES,
    PUT_PART,
    PUT_RUN,
    RANKS,
    REACH,
    READ,
    READ_FILE,
    REMOVE_MARKER,
    RESERVE,
    SEARCH,
    STAND_BY,
    START,
    STOP,
    STOP_LISTENING,
    STRAYS,
    WRITE_MARKER,
)
from orchestrator.node.run.events import Clock
from orchestrator.node.system.files import user_name
from orchestrator.node.system.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Dict, Optional, Tuple

    from orchestrator.node.endpoint.listener import Listener
    from orchestrator.node.endpoint.reading import Follower, Reader
    from orchestrator.node.endpoint.start import Starter
    from orchestrator.node.protocol import messages
    from orchestrator.node.protocol.operations import Op, Reply, Request, Steps
    from orchestrator.node.run.agent_files import NodeFolders


def hello(_request: messages.Empty, _payload: bytes) -> Tuple[messages.HelloReply, bytes]:
    """Describe this machine and this interpreter."""
    facts: messages.FactsBody = {
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


class Reservation:
    """Holds the rendezvous port while this program runs; before it ends, the head's agent has bound the port, too."""

    def __init__(self) -> None:
        self.holder: Optional[socket.socket] = None

    def reserve(self, request: messages.ReserveRequest, _payload: bytes) -> Tuple[messages.ReserveReply, bytes]:
        """Choose an address of this host and hold a free port; return the rendezvous record."""
        from orchestrator.node.rendezvous import reserve  # only the head reserves

        record, self.holder = reserve(request["candidates"], dict(os.environ, **request["interfaces"]))
        return {"rendezvous": record}, b""


class PortTest:
    """Listens on a port for the check of the nodes, at most until this program ends."""

    def __init__(self) -> None:
        self.listener: Optional[Listener] = None

    def listen(self, request: messages.ReserveRequest, _payload: bytes) -> Tuple[messages.ReserveReply, bytes]:
        """Listen at the address that a rendezvous would have, on a free port; return the record of both."""
        from orchestrator.node.endpoint.listener import Listener  # only the head of a check listens

        self.stop({}, b"")
        self.listener = Listener(request["candidates"], dict(os.environ, **request["interfaces"]))
        return {"rendezvous": self.listener.record}, b""

    def stop(self, _request: messages.Empty, _payload: bytes) -> Tuple[messages.Empty, bytes]:
        if self.listener is not None:
            self.listener.close()
        self.listener = None
        return {}, b""


def last_lines(request: messages.LastLinesRequest, payload: bytes) -> Tuple[messages.PositionsReply, bytes]:
    from orchestrator.node.endpoint.positions import last_lines as handle  # most connections do not need it

    return handle(request, payload)


def lines_since(request: messages.LinesSinceRequest, payload: bytes) -> Tuple[messages.PositionsReply, bytes]:
    from orchestrator.node.endpoint.positions import lines_since as handle

    return handle(request, payload)


def stop(request: messages.StopRequest) -> Steps[messages.StopReply]:
    from orchestrator.node.endpoint.stop import stop as handle  # most connections do not need it

    return handle(request)


def lacking(request: messages.BundleRequest, payload: bytes) -> Tuple[messages.Empty, bytes]:
    from orchestrator.node.endpoint.parts import lacking as handle

    return handle(request, payload)


def put_part(request: messages.PutPartRequest, payload: bytes) -> Tuple[messages.PutPartReply, bytes]:
    from orchestrator.node.endpoint.parts import put_part as handle

    return handle(request, payload)


def active_runs(request: messages.ActiveRunsRequest, payload: bytes) -> Tuple[messages.ActiveRunsReply, bytes]:
    from orchestrator.node.endpoint.garbage import find_active_runs as handle

    return handle(request, payload)


def file_system(request: messages.FileSystemRequest, payload: bytes) -> Tuple[messages.FileSystemReply, bytes]:
    from orchestrator.node.endpoint.shared_folder import file_system as handle

    return handle(request, payload)


def write_marker(request: messages.WriteMarkerRequest, payload: bytes) -> Tuple[messages.WriteMarkerReply, bytes]:
    from orchestrator.node.endpoint.shared_folder import write_marker as handle

    return handle(request, payload)


def find_marker(request: messages.MarkerRequest, payload: bytes) -> Tuple[messages.FindMarkerReply, bytes]:
    from orchestrator.node.endpoint.shared_folder import find_marker as handle

    return handle(request, payload)


def remove_marker(request: messages.MarkerRequest, payload: bytes) -> Tuple[messages.Empty, bytes]:
    from orchestrator.node.endpoint.shared_folder import remove_marker as handle

    return handle(request, payload)


def ranks(request: NodeFolders, payload: bytes) -> Tuple[messages.RanksReply, bytes]:
    from orchestrator.node.endpoint.report import ranks as handle

    return handle(request, payload)


def strays(request: messages.StraysRequest, payload: bytes) -> Tuple[messages.StraysReply, bytes]:
    from orchestrator.node.endpoint.strays import strays as handle

    return handle(request, payload)


def search(request: messages.SearchRequest, payload: bytes) -> Tuple[messages.SearchReply, bytes]:
    from orchestrator.node.endpoint.search import search as handle

    return handle(request, payload)


def clear(request: messages.ClearRequest, payload: bytes) -> Tuple[messages.ClearReply, bytes]:
    from orchestrator.node.endpoint.garbage import clear as handle

    return handle(request, payload)


def list_files(request: messages.ListFilesRequest, payload: bytes) -> Tuple[messages.ListFilesReply, bytes]:
    from orchestrator.node.endpoint.fetch import list_files as handle

    return handle(request, payload)


def read_file(request: messages.ReadFileRequest, payload: bytes) -> Tuple[messages.Empty, bytes]:
    from orchestrator.node.endpoint.fetch import read_file as handle

    return handle(request, payload)


class LogFiles:
    """Reads and follows the output files of runs, in rotation."""

    def __init__(self) -> None:
        self.reader: Optional[Reader] = None
        self.follower: Optional[Follower] = None

    def add_to(self, handlers: Handlers) -> None:
        handlers.add(READ, self.read)
        handlers.add_waiting(FOLLOW, self.follow)

    def read(self, request: messages.ReadRequest, payload: bytes) -> Tuple[messages.ReadReply, bytes]:
        from orchestrator.node.endpoint.reading import Reader

        self.reader = self.reader or Reader()
        return self.reader.read(request, payload)

    def follow(self, request: messages.FollowRequest) -> Steps[messages.FollowReply]:
        from orchestrator.node.endpoint.reading import Follower

        self.follower = self.follower or Follower()
        return self.follower.follow(request)


class Commands:
    """Runs commands with the user's umask."""

    def __init__(self, umask: int) -> None:
        self.umask = umask

    def run(self, request: messages.CommandRequest, payload: bytes) -> Tuple[messages.CommandReply, bytes]:
        from orchestrator.node.endpoint.command import command

        return command(request, self.umask, payload), b""

    def run_once(self, request: messages.CommandOnceRequest, _payload: bytes) -> Tuple[messages.CommandReply, bytes]:
        from orchestrator.node.endpoint.command import command_once

        return command_once(request, self.umask), b""


class Handlers:
    """The function that answers each operation."""

    def __init__(self) -> None:
        self._by_op: Dict[object, Any] = {}
        self._waiting: Dict[object, Any] = {}

    def add(self, op: Op[Request, Reply], handler: Callable[[Request, bytes], Tuple[Reply, bytes]]) -> None:
        self._by_op[op] = handler

    def add_waiting(self, op: Op[Request, Reply], handler: Callable[[Request], Steps[Reply]]) -> None:
        """Add a handler that yields the seconds after which it looks again whether it has an answer."""
        self._waiting[op] = handler

    def answer(self, request: messages.RequestHeader, payload: bytes) -> Steps[Dict[str, object]]:
        """Handle a request; return the reply. Any exception becomes an error reply, which the controller reports."""
        begun, ok, op = time.monotonic(), True, request.get("op")
        try:
            if op in self._waiting:
                reply, data = yield from self._waiting[op](request)
            elif op in self._by_op:
                reply, data = self._by_op[op](request, payload)
            else:
                raise ValueError(f"no such request: {op!r}")
        except Exception as error:  # noqa: BLE001  see above
            reply, data, ok = error_body(error), b"", False
        now = time.monotonic()
        header: messages.ReplyHeader = {
            "number": request["number"],
            "ok": ok,
            "held_s": now - begun,
            "monotonic_s": now,
            "bytes": len(data),
        }
        return dict(reply, **header), data


def error_body(error: BaseException) -> messages.ErrorBody:
    """An exception as a reply; an OSError as 'path: reason', without its number."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return {"kind": type(error).__name__, "message": message}


def all_handlers(starter: Starter, umask: int) -> Handlers:
    """A handler for each operation of protocol.py."""
    commands = Commands(umask)
    port_test = PortTest()
    handlers = Handlers()
    handlers.add(HELLO, hello)
    handlers.add(PREPARE, prepare)
    handlers.add(PUT_BUNDLE, put_bundle)
    handlers.add(LACKING, lacking)
    handlers.add(PUT_PART, put_part)
    handlers.add(PUT_RUN, put_run)
    handlers.add(PUT_FILES, put_files)
    handlers.add(RESERVE, Reservation().reserve)
    handlers.add(LISTEN, port_test.listen)
    handlers.add(STOP_LISTENING, port_test.stop)
    handlers.add(START, starter.start)
    handlers.add(STAND_BY, starter.stand_by)
    handlers.add(FILES, files)
    handlers.add(LAST_LINES, last_lines)
    handlers.add(LINES_SINCE, lines_since)
    LogFiles().add_to(handlers)
    handlers.add(OBSERVE, observe)
    handlers.add(FIND, find)
    handlers.add(ACTIVE_RUNS, active_runs)
    handlers.add_waiting(HEARTBEAT, heartbeat)
    handlers.add(REACH, reach)
    handlers.add(CONNECT, connect)
    handlers.add_waiting(STOP, stop)
    handlers.add(FILE_SYSTEM, file_system)
    handlers.add(WRITE_MARKER, write_marker)
    handlers.add(FIND_MARKER, find_marker)
    handlers.add(REMOVE_MARKER, remove_marker)
    handlers.add(RANKS, ranks)
    handlers.add(STRAYS, strays)
    handlers.add(SEARCH, search)
    handlers.add(CLEAR, clear)
    handlers.add(LIST_FILES, list_files)
    handlers.add(READ_FILE, read_file)
    handlers.add(COMMAND, commands.run)
    handlers.add(COMMAND_ONCE, commands.run_once)
    return handlers
