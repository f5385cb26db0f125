"""
What an endpoint reports, as values: facts of a node, its agents, their output and how they end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from orchestrator.node.events import cause_s

if TYPE_CHECKING:
    from orchestrator.node.events import Event, RankResult

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What a node says of itself.

    `time` is its clock, `host_id` is equal where two processes share loopback, `cards` counts device files by accelerator.
    """

    python: str
    hostname: str
    host_id: str
    home: str
    user: str
    cards: Mapping[str, int]
    pid: int
    time: float


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """agent.json; pid, start time and boot id together name one process for good."""

    pid: int
    start_time: int
    pgid: int
    boot_id: str
    host_id: str
    hostname: str
    python: str
    node: str
    node_rank: int
    ranks: tuple[int, ...]
    world_size: int
    rendezvous: str
    started: float
    address: str = ""
    """Where the head finds it; empty for the agent of an earlier version."""

    @classmethod
    def of(cls, record: Json) -> AgentRecord:
        """From the file's object; keys of a newer agent are ignored."""
        known = {item.name: record[item.name] for item in fields(cls) if item.name in record}
        return cls(**{**known, "ranks": tuple(known["ranks"])})


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    A piece of a file, `n0/rank-0.out`, beginning at `offset`; the next one is asked for from `end` on.

    With a gap there is no data: the file became that many bytes shorter than what was read of it, and goes on at `offset`.
    `shift_s` is what to add to the times that its agent wrote, to have them by this machine's clock.
    """

    file: str
    offset: int
    data: bytes
    gap: int = 0
    shift_s: float = field(default=0.0, compare=False)

    @property
    def end(self) -> int:
        """The offset to go on from."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Trace:
    """
    What the newest attempt of a run left on a node; `nodes` None: whichever Slurm chose. `ranks` counts those of each node.

    `has_log` says whether a job's own log is there, which Slurm begins with the job.
    """

    attempt: int
    nodes: tuple[str, ...] | None
    ranks: tuple[int, ...]
    by_slurm: bool
    has_log: bool = False
    shared: bool = True
    """False where each node has its own part of the run."""

    @classmethod
    def of(cls, found: Json) -> Trace | None:
        """
        From the endpoint's reply.

        Raises:
            ValueError: job.json is missing, damaged or of another version of orch.
        """
        trace = found["trace"]
        if trace is None:
            return None
        try:
            job = trace["job"]
            nodes = None if job["nodes"] is None else tuple(str(node) for node in job["nodes"])
            ranks = tuple(int(count) for count in job["ranks"])
            fits = job["version"] == 1 and len(ranks) > 0 and (nodes is None or len(nodes) == len(ranks))
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"attempt-{trace['attempt']}/job.json is missing or damaged") from exc
        if not fits:
            raise ValueError(f"attempt-{trace['attempt']}/job.json is of another version of orch")
        shared = (job.get("slurm") or {}).get("shared", True)
        return cls(trace["attempt"], nodes, ranks, trace["by_slurm"], trace["has_log"], shared)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended: a code or a signal's name, and its error message, and the kind of that, where it left them."""

    rank: int
    code: int | None
    signal: str | None
    error: str | None
    kind: str | None = None

    @classmethod
    def of(cls, event: RankResult) -> RankExit:
        """From a rank-exited event or the exit of an agent-finished event."""
        return cls(event["rank"], event.get("code"), event.get("signal"), event.get("error"), event.get("kind"))


@dataclass(frozen=True, slots=True)
class Finished:
    """
    An agent's end: DONE, FAILED, STOPPED or, under Slurm, REQUEUE, and the first rank that failed.

    `time` is that of its cause (events.cause_s), by this machine's clock.
    """

    state: str
    time: float
    exit: RankExit | None
    text: str = ""

    @classmethod
    def of(cls, event: Event, shift_s: float) -> Finished:
        """From an agent-finished event."""
        exit_ = event.get("exit")
        return cls(
            event["state"], cause_s(event) + shift_s, RankExit.of(exit_) if exit_ else None, event.get("text", "")
        )


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """
    One node folder. `alive` can be true only where `same_boot` is: elsewhere (a login node) nobody can tell.

    `progress` holds the progress files as they are; `stacks` says where ranks stood that left their stacks; `folder` is its
    path there; `log` is the end of agent.log where the agent left no other word.
    """

    node: str
    agent: AgentRecord | None
    alive: bool
    same_boot: bool
    finished: Finished | None
    first_failure: RankExit | None
    ranks: Mapping[int, str] = field(default_factory=dict)
    progress: Mapping[int, Json] = field(default_factory=dict)
    log: str = ""
    stacks: Mapping[int, str] = field(default_factory=dict)
    folder: str = ""

    @classmethod
    def of(cls, seen: Json, written: Window) -> NodeObservation:
        """From the endpoint's reply."""
        shift_s = written.shift_s(seen["clock"])
        return cls(
            node=seen["node"],
            agent=AgentRecord.of(seen["agent"]) if seen["agent"] else None,
            alive=seen["alive"],
            same_boot=seen["same_boot"],
            finished=Finished.of(seen["finished"], shift_s) if seen["finished"] else None,
            first_failure=RankExit.of(seen["first_failure"]) if seen["first_failure"] else None,
            ranks={int(rank): state for rank, state in seen["ranks"].items()},
            progress={int(rank): value for rank, value in seen["progress"].items()},
            log=seen["log"],
            stacks={int(rank): place for rank, place in seen["stacks"].items()},
            folder=seen["folder"],
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command on the node ended (127: there is none of that name, 124: it gave no answer in time), and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal that was sent; `what` is `agent`, `rank 3`, `group of rank 3` or `process of the run`."""

    pid: int
    what: str
    signal: str


@dataclass(frozen=True, slots=True)
class StopResult:
    """What was done to stop a node folder's processes, and the pids that are still there."""

    node: str
    signalled: tuple[Signalled, ...]
    remaining: tuple[int, ...]

    @classmethod
    def of(cls, result: Json) -> StopResult:
        """From the endpoint's reply."""
        return cls(result["node"], tuple(Signalled(**sent) for sent in result["signalled"]), tuple(result["remaining"]))


@dataclass(frozen=True, slots=True)
class Stray:
    """A run's process that no agent answers for; `alive` after everything that was done against it."""

    pid: int
    run: str
    node: str
    command: str
    age_s: float
    alive: bool


@dataclass(frozen=True, slots=True)
class CardUser:
    """Another user's process on a card; `uid` is None where the process cannot be seen from here."""

    pid: int
    uid: int | None
    command: str
    card: str


@dataclass(frozen=True, slots=True)
class Hunted:
    """The strays of a machine and the other users of its cards; `note` says what could not be asked."""

    strays: tuple[Stray, ...]
    users: tuple[CardUser, ...]
    note: str

    @classmethod
    def of(cls, reply: Json) -> Hunted:
        """From the endpoint's reply."""
        strays = tuple(Stray(**stray) for stray in reply["strays"])
        return cls(strays, tuple(CardUser(**user) for user in reply["users"]), reply["note"])


@dataclass(frozen=True, slots=True)
class Leftover:
    """
    A run folder or a bundle, and what was done with it.

    `action` is `remove`, `keep` (`why` says the reason), `young`, or `fail` (`why` says the error).
    """

    kind: str
    name: str
    path: str
    bytes: int
    checkpoint_bytes: int
    age_s: float
    action: str
    why: str


READ_S = 0.001  # a process may lose the processor between two looks


@dataclass(frozen=True, slots=True)
class Window:
    """When a node wrote its reply, by this machine's clock: not before it could have, nor after it was heard."""

    earliest: float
    latest: float

    def shift_s(self, now_there: float | None) -> float:
        """
        What to add to times of a clock that showed `now_there` in the reply; 0 where nobody knows.

        A clock that may be right is left alone, for what a reply takes says nothing of it; any other is moved by the
        least that makes it possible, if that is more than reading a clock is off by: all who read a log see the same times.
        """
        if now_there is None or self.latest < self.earliest:  # the clock of this machine was set meanwhile
            return 0.0
        shift_s = min(max(now_there, self.earliest), self.latest) - now_there
        return shift_s if abs(shift_s) > READ_S else 0.0
