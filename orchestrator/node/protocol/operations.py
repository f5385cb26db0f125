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
    from typing import Any, Callable, Generator, Generic, Tuple, TypeVar, overload

    from orchestrator.node.protocol import agents, board, connection, output, push, runs, transfer
    from orchestrator.node.run.agent_files import NodeFolders

    Request = TypeVar("Request")
    Reply = TypeVar("Reply")
    Steps = Generator[float, None, Tuple[Reply, bytes]]
    """A request that waits: yields the seconds after which it continues, and returns the reply."""

    class Op(Generic[Request, Reply]):
        """The name of an operation."""

        def __init__(self, name: str) -> None: ...

    Plain = Callable[[Request, bytes], Tuple[Reply, bytes]]
    PlainMethod = Callable[[Any, Request, bytes], Tuple[Reply, bytes]]
    Waiting = Callable[[Request, bytes], Steps[Reply]]
    WaitingMethod = Callable[[Any, Request, bytes], Steps[Reply]]

    class Answers(Generic[Request, Reply]):
        """Accepts a function or method that takes the request and its raw bytes, and returns the reply and its raw bytes."""

        @overload
        def __call__(self, handler: Plain[Request, Reply]) -> Plain[Request, Reply]: ...
        @overload
        def __call__(self, handler: PlainMethod[Request, Reply]) -> PlainMethod[Request, Reply]: ...
        @overload
        def __call__(self, handler: Waiting[Request, Reply]) -> Waiting[Request, Reply]: ...
        @overload
        def __call__(self, handler: WaitingMethod[Request, Reply]) -> WaitingMethod[Request, Reply]: ...
        def __call__(self, handler: Any) -> Any: ...

    def answers(op: Op[Request, Reply]) -> Answers[Request, Reply]:
        """Declare the handler of an operation, which has the operation's name: endpoint/serve.py finds it by that."""


if not TYPE_CHECKING:
    Op = str

    def answers(_op: str) -> object:
        return lambda handler: handler


class HeadPortTaken(Exception):
    """An error of START: another program listens on the rendezvous port. The controller reserves another one and retries."""


HELLO: Op[connection.Empty, connection.HelloReply] = Op("hello")
PREPARE: Op[push.PrepareRequest, push.PrepareReply] = Op("prepare")
PUT_BUNDLE: Op[push.PutBundleRequest, connection.Empty] = Op("put_bundle")
LACKING: Op[push.BundleRequest, connection.Empty] = Op("lacking")
PUT_PART: Op[push.PutPartRequest, push.PutPartReply] = Op("put_part")
PUT_RUN: Op[push.PutRunRequest, push.PutRunReply] = Op("put_run")
PUT_FILES: Op[push.PutFilesRequest, connection.Empty] = Op("put_files")
RESERVE: Op[connection.ReserveRequest, connection.ReserveReply] = Op("reserve")
LISTEN: Op[connection.ReserveRequest, connection.ReserveReply] = Op("listen")
STOP_LISTENING: Op[connection.Empty, connection.Empty] = Op("stop_listening")
START: Op[agents.StartRequest, agents.StartReply] = Op("start")
STAND_BY: Op[agents.StandbyRequest, connection.Empty] = Op("stand_by")
FILES: Op[output.FilesRequest, output.FilesReply] = Op("files")
LAST_LINES: Op[output.LastLinesRequest, output.PositionsReply] = Op("last_lines")
LINES_SINCE: Op[output.LinesSinceRequest, output.PositionsReply] = Op("lines_since")
READ: Op[output.ReadRequest, output.ReadReply] = Op("read")
FOLLOW: Op[output.FollowRequest, output.FollowReply] = Op("follow")
OBSERVE: Op[NodeFolders, agents.ObserveReply] = Op("observe")
FIND: Op[runs.FindRequest, runs.FindReply] = Op("find")
ACTIVE_RUNS: Op[runs.ActiveRunsRequest, runs.ActiveRunsReply] = Op("active_runs")
HEARTBEAT: Op[agents.HeartbeatRequest, agents.HeartbeatReply] = Op("heartbeat")
REACH: Op[connection.ReachRequest, connection.ReachReply] = Op("reach")
CONNECT: Op[connection.ConnectRequest, connection.ConnectReply] = Op("connect")
STOP: Op[agents.StopRequest, agents.StopReply] = Op("stop")
REQUEST_SAVE: Op[agents.SaveRequestBody, agents.SaveReply] = Op("request_save")
FILE_SYSTEM: Op[connection.FileSystemRequest, connection.FileSystemReply] = Op("file_system")
WRITE_MARKER: Op[connection.WriteMarkerRequest, connection.WriteMarkerReply] = Op("write_marker")
FIND_MARKER: Op[connection.MarkerRequest, connection.FindMarkerReply] = Op("find_marker")
REMOVE_MARKER: Op[connection.MarkerRequest, connection.Empty] = Op("remove_marker")
SEARCH: Op[output.SearchRequest, output.SearchReply] = Op("search")
RANKS: Op[NodeFolders, agents.RanksReply] = Op("ranks")
STRAYS: Op[runs.StraysRequest, runs.StraysReply] = Op("strays")
HOLDERS: Op[connection.Empty, runs.HoldersReply] = Op("holders")
CLEAR: Op[runs.ClearRequest, runs.ClearReply] = Op("clear")
LIST_FILES: Op[output.ListFilesRequest, output.ListFilesReply] = Op("list_files")
READ_FILE: Op[output.ReadFileRequest, connection.Empty] = Op("read_file")
COMMAND: Op[connection.CommandRequest, connection.CommandReply] = Op("command")
COMMAND_ONCE: Op[connection.CommandOnceRequest, connection.CommandReply] = Op("command_once")
CLAIM_FOLDER: Op[transfer.ClaimRequest, transfer.ClaimReply] = Op("claim_folder")
RELEASE_FOLDER: Op[transfer.ClaimRequest, connection.Empty] = Op("release_folder")
OFFER: Op[transfer.OfferRequest, transfer.OfferReply] = Op("offer")
DIGEST: Op[transfer.DigestRequest, transfer.DigestReply] = Op("digest")
PUT_PIECES: Op[transfer.PiecesRequest, transfer.PiecesReply] = Op("put_pieces")
KEEP_TIME: Op[transfer.KeepTimeRequest, connection.Empty] = Op("keep_time")
FINISH: Op[connection.Empty, connection.Empty] = Op("finish")
FORWARD: Op[transfer.ForwardRequest, connection.Empty] = Op("forward")
FORWARDED: Op[transfer.ForwardedRequest, transfer.ForwardedReply] = Op("forwarded")
BOARD_START: Op[board.BoardRequest, board.BoardReply] = Op("board_start")
BOARD_CONNECT: Op[connection.Empty, board.OpenedReply] = Op("board_connect")
BOARD_SEND: Op[board.ConnectionRequest, connection.Empty] = Op("board_send")
BOARD_RECEIVE: Op[board.ReceiveRequest, board.ReceiveReply] = Op("board_receive")
BOARD_CLOSE: Op[board.ConnectionRequest, connection.Empty] = Op("board_close")
