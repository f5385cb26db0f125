"""The keys of requests to an endpoint and of the replies. For type checkers: no program imports this module at run time."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from orchestrator.node.run.agent_files import AgentBody, CardsBody, HangBody, NetworkBody, NodeFolders, RankBody

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from orchestrator.node.run.events import Event

Json = Dict[str, Any]


class RequestHeader(TypedDict):
    """`number` is repeated in the reply; `bytes` is the number of raw bytes that follow."""

    op: object
    number: int
    bytes: int


class ReplyHeader(TypedDict):
    """`held_s` are the seconds until `monotonic_s` of the node's clock since boot; `bytes` is the number of raw bytes that follow."""

    number: int
    ok: bool
    held_s: float
    monotonic_s: float
    bytes: int


class ErrorBody(TypedDict):
    """An exception: its class and its message."""

    kind: str
    message: str


class Empty(TypedDict):
    """A request or a reply without keys."""


class FactsBody(TypedDict):
    python: str
    hostname: str
    host_id: str
    home: str
    user: str
    cards: Dict[str, int]
    pid: int
    clock_ahead_s: float


class HelloReply(TypedDict):
    facts: FactsBody


class BundleRequest(TypedDict):
    workdir: str
    digest: str


class PrepareRequest(BundleRequest):
    """`bytes_unpacked` is the size of the bundle on a disk, `bytes_more` that of what follows it."""

    bytes_unpacked: int
    bytes_more: int


class PrepareReply(TypedDict):
    have_bundle: bool


class PutBundleRequest(BundleRequest):
    sha256: str


class PutPartRequest(PutBundleRequest):
    """The payload is the manifest, of `manifest_bytes`, and an archive with this SHA-256 of the files that the node lacks."""

    manifest_bytes: int


class PutPartReply(TypedDict):
    """Nothing is written if the bundle is not complete: a file that the node had is gone."""

    is_complete: bool


class FileBody(TypedDict):
    path: str
    size: int
    mode: int


class PutRunRequest(PrepareRequest):
    """The `files` of a run go below its folder. With `claim`, only the first node on a file system writes anything."""

    run: str
    claim: bool
    files: List[FileBody]


class PutRunReply(TypedDict):
    """
    `is_first` is false if another node has claimed the run; without the bundle, nothing is written.

    With much code, `runs` have copies of `runs_code_bytes` together in the working folder, this run included.
    """

    is_first: bool
    is_written: bool
    runs: int
    runs_code_bytes: int


class PutFilesRequest(TypedDict):
    folder: str
    files: List[FileBody]


class ReserveRequest(TypedDict):
    candidates: List[str]
    interfaces: Dict[str, str]


class ReserveReply(TypedDict):
    rendezvous: str


class AgentStart(TypedDict):
    """The values in node.sh. Variables in `defaults` are set unless they are set already."""

    python: str
    python_folder: str
    env: Dict[str, str]
    defaults: Dict[str, str]
    bundle: str
    job: str
    node: str
    node_rank: int
    rendezvous: str


class StartRequest(TypedDict):
    """`argv` starts an agent by its node.sh; with `agent`, the endpoint may do so without a shell."""

    argv: List[str]
    agent: Optional[AgentStart]
    folder: str
    wait_s: float


class StartReply(TypedDict):
    agent: AgentBody


class StandbyRequest(TypedDict):
    """`agent` and `folder` are those of the attempt that runs; None to end a standby."""

    agent: Optional[AgentStart]
    folder: str


class ListFilesRequest(NodeFolders):
    """`path` of a run, whose ranks run in `cwd`, relative to the root of the code."""

    path: str
    cwd: str


class EntryBody(TypedDict):
    """`kind` is file, folder or link; `target` is that of a link."""

    path: str
    kind: str
    size: int
    mode: int
    target: str


class FoundBody(TypedDict):
    """`identity` is equal on machines that share the file system."""

    node: str
    root: str
    identity: str
    entries: List[EntryBody]
    left_out: List[str]


class ListFilesReply(TypedDict):
    found: List[FoundBody]


class ReadFileRequest(NodeFolders):
    root: str
    path: str
    offset: int
    size: int


class Outputs(TypedDict):
    """Output files of ranks: rank-N.STREAM of these nodes, ranks and streams; None means all."""

    nodes: Optional[List[str]]
    ranks: Optional[List[int]]
    streams: Optional[List[str]]


class FilesRequest(NodeFolders):
    outputs: Outputs


class FilesReply(TypedDict):
    files: Dict[str, int]


class LastLinesRequest(FilesRequest):
    lines: int


class LinesSinceRequest(FilesRequest):
    since_s: float


class PositionsReply(TypedDict):
    """
    Offsets from which to read, by file.

    `skipped` has the parts beyond an offset that need not be read, ascending, each from the start of a line on; `written` has the
    sizes and times of the writes beyond an offset; both by file. `clocks_ahead_s` is by node, see ReadReply.
    """

    offsets: Dict[str, int]
    skipped: Dict[str, List[Tuple[int, int]]]
    written: Dict[str, List[Tuple[int, float]]]
    clocks_ahead_s: Dict[str, Optional[float]]


class ReadRequest(TypedDict):
    """`ranges` has the begin and the end of a part, by file."""

    attempt_dir: str
    ranges: Dict[str, Tuple[int, int]]
    max_bytes: int


class ChunkBody(TypedDict, total=False):
    """A piece of a file, or a gap."""

    file: str
    offset: int
    size: int
    gap: int


class ReadReply(TypedDict):
    """`clocks_ahead_s` has, by node, the agent's clock minus the clock since boot; None if that is unknown."""

    chunks: List[ChunkBody]
    clocks_ahead_s: Dict[str, Optional[float]]


class FollowBody(FilesRequest):
    """The files to follow, and the offsets to begin at; 0 in other files."""

    offsets: Dict[str, int]


class FollowRequest(TypedDict):
    """Continue at the `position` of the last reply, or `begin` at offsets."""

    position: Optional[str]
    begin: Optional[FollowBody]
    max_bytes: int
    wait_s: float


class FollowReply(ReadReply):
    """The `position` of the next request; None if the requested one is not known to this connection."""

    position: Optional[str]


class RanksReply(TypedDict):
    """The ranks of the running agents of this machine, by the name of the node."""

    nodes: Dict[str, Dict[int, RankBody]]


class NodeBody(TypedDict):
    node: str
    agent: Optional[AgentBody]
    alive: bool
    stopped: bool
    same_boot: bool
    clock_ahead_s: Optional[float]
    finished: Optional[Event]
    ranks: Dict[int, str]
    first_failure: Optional[Event]
    progress: Dict[int, Json]
    cards: NotRequired[Optional[CardsBody]]
    network: NotRequired[Optional[NetworkBody]]
    hang: NotRequired[Optional[HangBody]]
    peer_answered: NotRequired[bool]
    stacks: Dict[int, str]
    folder: str
    log: str


class ObserveReply(TypedDict):
    nodes: List[NodeBody]


class RunRequest(TypedDict):
    workdir: str
    run: str


class FindRequest(RunRequest):
    """`log_bytes`: how much of the end of the batch script's log to return."""

    log_bytes: int


class BatchLogBody(TypedDict):
    text: str
    written_s: float


class TraceBody(TypedDict):
    attempt: int
    job: Optional[Json]
    by_slurm: bool
    batch_log: Optional[BatchLogBody]


class FindReply(TypedDict):
    trace: Optional[TraceBody]


class PatternBody(TypedDict):
    """A line that contains one of the texts matches if the expression does; the expression may span several lines."""

    id: str
    expression: str
    texts: List[str]
    lines: int


class HitBody(TypedDict):
    """`head` is the beginning of the line, if `text` is a part of it after a carriage return."""

    id: str
    line: int
    text: str
    head: str


class SearchRequest(NodeFolders):
    """`kernel` are the ids of the patterns for the log of the kernel. Of a file larger than `max_bytes`, parts of that size are searched."""

    patterns: List[PatternBody]
    kernel: List[str]
    max_bytes: int
    wait_s: float


class LogBody(TypedDict):
    """The hits in one log, or a part of it; its `lines` are counted after the `skipped` bytes. `progress_line` is that of Search."""

    node: str
    name: str
    skipped: int
    bytes: int
    lines: int
    hits: List[HitBody]
    counts: Dict[str, int]
    progress_line: int


class SearchReply(TypedDict):
    """`remarks` are sentences about the nodes: logs that cannot be read, full disks, little memory. `is_partial`: not all was searched."""

    logs: List[LogBody]
    remarks: List[str]
    is_partial: bool


class ActiveRunsRequest(TypedDict):
    workdir: str


class ActiveRunsReply(TypedDict):
    """The runs in the working folder with a living process on this machine."""

    runs: List[str]


class HeartbeatRequest(NodeFolders):
    known: object
    peers: List[str]
    wait_s: float


class HeartbeatReply(ObserveReply):
    known: object


class ReachRequest(TypedDict):
    addresses: List[str]
    port: int


class ReachReply(TypedDict):
    addresses: List[str]


class ConnectRequest(TypedDict):
    address: str
    port: int


class ConnectReply(TypedDict):
    """The reason why the node cannot connect; empty if it can."""

    error: str


class StopRequest(NodeFolders):
    """With `keeps_standby`, the endpoint's own standby continues, and states in memory are kept: the run is to be restarted."""

    grace_s: float
    keeps_standby: bool


class SignalledBody(TypedDict):
    pid: int
    role: str
    signal: str


class StopBody(TypedDict):
    node: str
    signalled: List[SignalledBody]
    remaining: List[int]
    in_kernel: List[int]  # of the remaining ones; no signal ends them before their disk or driver has answered


class StopReply(TypedDict):
    nodes: List[StopBody]


class FileSystemRequest(TypedDict):
    path: str


class FileSystemReply(TypedDict):
    type: str
    local: bool


class WriteMarkerRequest(TypedDict):
    folder: str
    token: str


class WriteMarkerReply(TypedDict):
    path: str


class MarkerRequest(TypedDict):
    path: str


class FindMarkerReply(TypedDict):
    token: str


class StraysRequest(TypedDict):
    min_age_s: float
    grace_s: float
    dry_run: bool


class StrayBody(TypedDict):
    pid: int
    run: str
    node: str
    command: str
    age_s: float
    alive: bool


class CardUserBody(TypedDict):
    pid: int
    uid: Optional[int]
    command: str
    card: str


class StraysReply(TypedDict):
    strays: List[StrayBody]
    users: List[CardUserBody]
    tool_error: str


class ClearRequest(TypedDict):
    workdir: str
    older_than_s: float
    results: bool
    dry_run: bool


class GarbageBody(TypedDict):
    """
    A run folder or a bundle, and the action on it: `remove`, `keep` (`why` is the reason), `young`, or `fail` (`why` is the error).

    `results` are the largest files and folders that hold results, relative to the run's folder.
    """

    kind: str
    name: str
    path: str
    bytes: int
    result_bytes: int
    results: List[str]
    age_s: float
    action: str
    why: str


class ClearReply(TypedDict):
    entries: List[GarbageBody]


class CommandRequest(TypedDict):
    """
    The payload is the standard input. `login` asks for the environment of a login instead of the connection's; `removed` is a
    pattern of variables that the command does not get.
    """

    argv: List[str]
    folder: str
    login: bool
    removed: str
    timeout_s: float


class CommandOnceRequest(CommandRequest):
    result_file: str
    begin: bool


class CommandReply(TypedDict):
    code: int
    out: str
    err: str
