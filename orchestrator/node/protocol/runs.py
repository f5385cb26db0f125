"""The keys of requests about the runs of a working folder, and about what runs have left on a machine."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from orchestrator.node.run.agent_files import HeldCards, Json


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


class ActiveRunsRequest(TypedDict):
    workdir: str


class ActiveRunsReply(TypedDict):
    """The runs in the working folder with a living process on this machine."""

    runs: List[str]


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


class HolderBody(TypedDict):
    """A living run that holds cards: since `age_s` seconds, on the node of this name in its inventory, with as many ranks."""

    run: str
    node: str
    age_s: float
    ranks: int
    cards: HeldCards


class HoldersReply(TypedDict):
    holders: List[HolderBody]


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
