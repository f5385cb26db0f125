"""
The operations of an endpoint, for both sides: one constant each, typed by the keys of the request and the reply.

At run time an operation is its name. To a type checker it is an Op[request, reply], so that a misspelt key, a
missing one or a handler of another operation is a type error in both endpoint/client.py and node/endpoint/.

A request also has the keys of RequestHeader, a reply the keys of ReplyHeader. A reply that is not ok has the keys of ErrorBody
instead of the operation's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Generator, Generic, Tuple, TypeVar

    from orchestrator.node.protocol import messages
    from orchestrator.node.run.agent_files import NodeFolders

    Request = TypeVar("Request")
    Reply = TypeVar("Reply")
    Steps = Generator[float, None, Tuple[Reply, bytes]]
    """A request that waits: yields the seconds after which it continues, and returns the reply."""

    class Op(Generic[Request, Reply]):
        """The name of an operation."""

    HELLO: Op[messages.Empty, messages.HelloReply]
    PREPARE: Op[messages.PrepareRequest, messages.PrepareReply]
    PUT_BUNDLE: Op[messages.PutBundleRequest, messages.Empty]
    LACKING: Op[messages.BundleRequest, messages.Empty]
    PUT_PART: Op[messages.PutPartRequest, messages.PutPartReply]
    PUT_RUN: Op[messages.PutRunRequest, messages.PutRunReply]
    PUT_FILES: Op[messages.PutFilesRequest, messages.Empty]
    RESERVE: Op[messages.ReserveRequest, messages.ReserveReply]
    LISTEN: Op[messages.ReserveRequest, messages.ReserveReply]
    STOP_LISTENING: Op[messages.Empty, messages.Empty]
    START: Op[messages.StartRequest, messages.StartReply]
    STAND_BY: Op[messages.StandbyRequest, messages.Empty]
    FILES: Op[messages.FilesRequest, messages.FilesReply]
    LAST_LINES: Op[messages.LastLinesRequest, messages.PositionsReply]
    LINES_SINCE: Op[messages.LinesSinceRequest, messages.PositionsReply]
    READ: Op[messages.ReadRequest, messages.ReadReply]
    FOLLOW: Op[messages.FollowRequest, messages.FollowReply]
    OBSERVE: Op[NodeFolders, messages.ObserveReply]
    FIND: Op[messages.FindRequest, messages.FindReply]
    ACTIVE_RUNS: Op[messages.ActiveRunsRequest, messages.ActiveRunsReply]
    HEARTBEAT: Op[messages.HeartbeatRequest, messages.HeartbeatReply]
    REACH: Op[messages.ReachRequest, messages.ReachReply]
    CONNECT: Op[messages.ConnectRequest, messages.ConnectReply]
    STOP: Op[messages.StopRequest, messages.StopReply]
    FILE_SYSTEM: Op[messages.FileSystemRequest, messages.FileSystemReply]
    WRITE_MARKER: Op[messages.WriteMarkerRequest, messages.WriteMarkerReply]
    FIND_MARKER: Op[messages.MarkerRequest, messages.FindMarkerReply]
    REMOVE_MARKER: Op[messages.MarkerRequest, messages.Empty]
    SEARCH: Op[messages.SearchRequest, messages.SearchReply]
    RANKS: Op[NodeFolders, messages.RanksReply]
    STRAYS: Op[messages.StraysRequest, messages.StraysReply]
    CLEAR: Op[messages.ClearRequest, messages.ClearReply]
    LIST_FILES: Op[messages.ListFilesRequest, messages.ListFilesReply]
    READ_FILE: Op[messages.ReadFileRequest, messages.Empty]
    COMMAND: Op[messages.CommandRequest, messages.CommandReply]
    COMMAND_ONCE: Op[messages.CommandOnceRequest, messages.CommandReply]


class HeadPortTaken(Exception):
    """An error of START: another program listens on the rendezvous port. The controller reserves another one and retries."""


if not TYPE_CHECKING:
    HELLO = "hello"
    PREPARE = "prepare"
    PUT_BUNDLE = "put_bundle"
    LACKING = "lacking"
    PUT_PART = "put_part"
    PUT_RUN = "put_run"
    PUT_FILES = "put_files"
    RESERVE = "reserve"
    LISTEN = "listen"
    STOP_LISTENING = "stop_listening"
    START = "start"
    STAND_BY = "stand_by"
    FILES = "files"
    LAST_LINES = "last_lines"
    LINES_SINCE = "lines_since"
    READ = "read"
    FOLLOW = "follow"
    OBSERVE = "observe"
    FIND = "find"
    ACTIVE_RUNS = "active_runs"
    HEARTBEAT = "heartbeat"
    REACH = "reach"
    CONNECT = "connect"
    STOP = "stop"
    FILE_SYSTEM = "file_system"
    WRITE_MARKER = "write_marker"
    FIND_MARKER = "find_marker"
    REMOVE_MARKER = "remove_marker"
    SEARCH = "search"
    RANKS = "ranks"
    STRAYS = "strays"
    CLEAR = "clear"
    LIST_FILES = "list_files"
    READ_FILE = "read_file"
    COMMAND = "command"
    COMMAND_ONCE = "command_once"
