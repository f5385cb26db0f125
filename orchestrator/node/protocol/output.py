"""The keys of requests for the files of an attempt: output of ranks, a search in it, other files."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple, TypedDict

from orchestrator.node.run.agent_files import NodeFolders


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


class PatternBody(TypedDict):
    """A line that contains one of the texts matches if the expression does; the expression may span several lines."""

    id: str
    expression: str
    texts: List[str]
    lines: int


class RaisedBody(TypedDict):
    """
    The traceback above a line; without one, all are empty.

    `frame` is the file of the last frame, `code` the line of code below it, and `caller` the last frame that is of no library, as FILE:LINE in FUNCTION.
    """

    frame: str
    code: str
    caller: str


class HitBody(RaisedBody):
    """
    A line in which a pattern was found.

    `head` is the beginning of the line, if `text` is a part of it after a carriage return; `after` are the next lines, for a pattern of one line.
    """

    id: str
    line: int
    text: str
    head: str
    after: str


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
