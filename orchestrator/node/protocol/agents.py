"""The keys of requests about the agents of an attempt: start, observe, stop."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict

from orchestrator.node.run.agent_files import AgentBody, CardsBody, HangBody, Json, NetworkBody, NodeFolders, RankBody

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from orchestrator.node.run.events import Event


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


class SpaceBody(TypedDict):
    """Bytes of a file system; `free` are those for users without privileges."""

    total: int
    free: int


class PortBody(TypedDict):
    """An active RDMA port, such as mlx5_0:1: bytes and errors since the driver was loaded."""

    name: str
    received: int
    sent: int
    errors: int


class MachineBody(TypedDict):
    """The use of a node's machine now, in bytes; None where it cannot be read. `disk` is the file system of the run's folder."""

    monotonic_s: float
    memory_total: Optional[int]
    memory_available: Optional[int]
    disk: Optional[SpaceBody]
    shm: Optional[SpaceBody]
    ports: List[PortBody]


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
    saving_ranks: NotRequired[Optional[List[Optional[int]]]]
    machine: NotRequired[MachineBody]
    stacks: Dict[int, str]
    folder: str
    log: str


class ObserveReply(TypedDict):
    nodes: List[NodeBody]


class HeartbeatRequest(NodeFolders):
    known: object
    peers: List[str]
    wait_s: float


class HeartbeatReply(ObserveReply):
    known: object


class RanksReply(TypedDict):
    """The ranks of the running agents of this machine, by the name of the node."""

    nodes: Dict[str, Dict[int, RankBody]]


class StopRequest(NodeFolders):
    """With `keeps_standby`, the endpoint's own standby continues, and states in memory are kept: the run is to be restarted."""

    grace_s: float
    keeps_standby: bool


class SaveRequestBody(NodeFolders):
    """The ranks have `grace_s` to save and end."""

    grace_s: float


class SaveReply(TypedDict):
    """The nodes whose agents take the request."""

    nodes: List[str]


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
