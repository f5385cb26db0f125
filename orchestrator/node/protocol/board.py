"""The keys of requests for TensorBoard on a node, and for the connections of browsers to it."""

from __future__ import annotations

from typing import List, TypedDict


class BoardRequest(TypedDict):
    """The newest attempt of the run; `setup` is a file of shell lines that sets the environment of the ranks, or empty."""

    attempt_dir: str
    nodes: None
    python: str
    setup: str
    wait_s: float


class BoardReply(TypedDict):
    """`folders` have event files. `port` is 0 if the program has ended, after it has printed `error`."""

    folders: List[str]
    port: int
    error: str


class OpenedReply(TypedDict):
    connection: int


class ConnectionRequest(TypedDict):
    """A connection to TensorBoard. The payload are the bytes to send, or to receive in a reply."""

    connection: int


class ReceiveRequest(ConnectionRequest):
    wait_s: float


class ReceiveReply(TypedDict):
    is_open: bool
