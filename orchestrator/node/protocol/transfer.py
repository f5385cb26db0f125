"""The keys of requests that bring files of the user to a folder of a node, from the controller or from another node."""

from __future__ import annotations

from typing import List, Tuple, TypedDict


class FileEntry(TypedDict):
    """A file, folder or link of a transfer: `path` is relative to the target folder, `target` is that of a link."""

    path: str
    kind: str
    size: int
    mode: int
    mtime_ns: int
    target: str


class ClaimRequest(TypedDict):
    """`token` names the transfer, `node` the node. With `is_workdir` the folder is made as the working folder of runs is."""

    folder: str
    is_workdir: bool
    token: str
    node: str


class ClaimReply(TypedDict):
    """The absolute path of the folder, and the first node that claimed it: nodes on one file system have the same owner."""

    folder: str
    owner: str


class OfferRequest(TypedDict):
    """The payload are the entries, as compressed JSON."""

    folder: str


class OfferReply(TypedDict):
    """
    By entry: the bytes of an incomplete file that are there, or ALIKE, or SAME_SIZE.

    `missing_bytes` is the disk space that is needed and not free.
    """

    states: List[int]
    free_bytes: int
    missing_bytes: int


class DigestRequest(TypedDict):
    """The file of this number in the offer: its first `size` bytes; with `is_part` those of the incomplete one."""

    index: int
    size: int
    is_part: bool


class DigestReply(TypedDict):
    sha256: str


class PiecesRequest(TypedDict):
    """
    Pieces of files, whose bytes follow one after the other: number in the offer, offset, size, SHA-256 of the whole file.

    The SHA-256 is empty in all pieces but the last one of a file.
    """

    pieces: List[Tuple[int, int, int, str]]


class PiecesReply(TypedDict):
    """The numbers of the files that are complete and differ from what was sent; they are removed."""

    damaged: List[int]


class KeepTimeRequest(TypedDict):
    """The number of a file whose content is equal: it gets the mode and the time of the offer."""

    index: int


class ForwardRequest(TypedDict):
    """
    Send files from `source` on this node to `target` on the node where `argv` starts an endpoint, which prints `marker`.

    The payload are the entries, as compressed JSON of `entries_bytes`, and the endpoint's program.
    """

    argv: List[str]
    marker: str
    source: str
    target: str
    entries_bytes: int


class ForwardedRequest(TypedDict):
    wait_s: float


class ForwardedReply(TypedDict):
    """`error` is the reason why the transfer has ended early; `is_refused`: because no program could be started on that node."""

    share: float
    is_done: bool
    is_refused: bool
    error: str
