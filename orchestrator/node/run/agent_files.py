"""The keys of the JSON files that an agent writes into its node folder, and of a request for such folders. For type checkers: no program imports this module at run time."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import NotRequired

Json = Dict[str, Any]


class NodeFolders(TypedDict):
    """The folders of these nodes in an attempt; of all nodes if `nodes` is None."""

    attempt_dir: str
    nodes: Optional[List[str]]


class BindingBody(TypedDict):
    """The CPUs of each rank of a node, in local order; without any, `reason` says why the ranks are not bound."""

    cpus: List[str]
    reason: str


class HeldCards(TypedDict):
    """The cards of the ranks of a node: `kind` is cuda or gcu, `visible` the value of the variable that selects them; None: it is not set."""

    kind: str
    visible: Optional[str]


class AgentBody(TypedDict):
    """agent.json; agents of older versions wrote fewer keys."""

    pid: int
    start_time: int
    boot_id: str
    pgid: int
    host_id: str
    hostname: str
    python: str
    node: str
    node_rank: int
    ranks: List[int]
    world_size: int
    rendezvous: str
    address: NotRequired[str]
    started: float
    clock_ahead_s: NotRequired[float]
    binding: NotRequired[BindingBody]
    cards: NotRequired[Optional[HeldCards]]  # None: the ranks use none
    oom_kills: NotRequired[Optional[int]]
    memory_cgroup: NotRequired[Optional[str]]
    cgroup_oom_kills: NotRequired[Optional[int]]


class CardsBody(TypedDict):
    """
    cards.json, the last sample of a node's cards: `idle` by index, if fewer than the `expected` number of cards are in use.

    `error` is the tool's error, or names the output that cannot be read; then nothing is judged. `mean_percent` is the mean utilization of
    the ranks' cards in the `samples` since the first step.
    """

    time: float
    tool: str
    error: str
    cards: List[Json]
    idle: List[int]
    expected: int
    used: int
    mean_percent: NotRequired[float]
    samples: NotRequired[int]


class NetworkBody(TypedDict):
    """network.json: the `expected` network is IB or RoCE; `taken` is NCCL's name of a network, or RDMA or Socket by the open files."""

    time: float
    expected: str
    taken: str
    evidence: str


class GroupBody(TypedDict):
    """The collectives of a process group that a rank has enqueued and completed; `waits_for` names the first that is not complete."""

    enqueued: int
    completed: int
    waits_for: NotRequired[str]


class RankBody(TypedDict):
    """
    The position of a rank. `state` is the letter in /proc/PID/stat, empty if the process has ended; `call` the main thread's innermost call.

    A rank that does not answer is stopped, or a call holds its interpreter lock: then only pid and state are known. `cpu_wait_s` is the time
    without a CPU since the last progress, if that is most of it.
    """

    pid: int
    state: str
    answers: bool
    phase: Optional[str]
    step: Optional[int]
    call: str
    loads_data: bool
    groups: Dict[str, GroupBody]
    memory: Optional[Dict[str, int]]
    stacks: str
    cpu_wait_s: NotRequired[float]


class RasBody(TypedDict):
    """The evidence of NCCL's RAS about the ranks of the job; the `problem` is why there is no answer, else empty."""

    version: str
    facts: List[str]
    problem: str


class HangBody(TypedDict):
    """
    hang.json: since `time`, no rank of the node has made progress. `step_s` is the longest duration among the last steps, 0 if unknown.

    The node of rank 0 has the answer of NCCL's RAS, if it was queried.
    """

    time: float
    step_s: float
    ranks: Dict[int, RankBody]
    ras: NotRequired[RasBody]
