"""The keys that every request and reply has, and those of requests about a machine: its facts, its ports, its file systems, a command on it."""

from __future__ import annotations

from typing import Dict, List, TypedDict


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


class ReserveRequest(TypedDict):
    candidates: List[str]
    interfaces: Dict[str, str]


class ReserveReply(TypedDict):
    rendezvous: str


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
