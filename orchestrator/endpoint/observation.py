"""The state of a run on its nodes: its agents, their ranks and exits, and its newest attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.logs import BatchLog
from orchestrator.node.run.events import cause_s

if TYPE_CHECKING:
    from orchestrator.endpoint.clock import ClockBounds
    from orchestrator.node.protocol.agents import MachineBody, NodeBody
    from orchestrator.node.protocol.runs import FindReply
    from orchestrator.node.run.agent_files import AgentBody, BindingBody, CardsBody, HangBody, NetworkBody
    from orchestrator.node.run.events import Event, RankResult, StateName

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """agent.json; pid, start time and boot id identify one process."""

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
    """Its address on the route to the head; empty if the agent is of an older version."""
    binding: BindingBody | None = None
    """The CPUs of the ranks, or the reason for which they are not bound; None if the agent is of an older version."""

    @classmethod
    def of(cls, body: AgentBody) -> AgentRecord:
        """From agent.json; unknown keys of a newer agent are ignored."""
        return cls(
            pid=body["pid"],
            start_time=body["start_time"],
            pgid=body["pgid"],
            boot_id=body["boot_id"],
            host_id=body["host_id"],
            hostname=body["hostname"],
            python=body["python"],
            node=body["node"],
            node_rank=body["node_rank"],
            ranks=tuple(body["ranks"]),
            world_size=body["world_size"],
            rendezvous=body["rendezvous"],
            started=body["started"],
            address=body.get("address", ""),
            binding=body.get("binding"),
        )


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """
    The exit of a rank: an exit code, or the name of a signal; for an error also the message and the kind.

    `rank` is None for a program that runs once per node.
    """

    rank: int | None
    code: int | None
    signal: str | None
    error: str | None
    kind: str | None = None
    missing: str | None = None
    """The path of a FileNotFoundError that the node does not have."""
    lost_peer: bool = False
    """The rank has failed because another rank ended, or closed its connection."""
    exception: str | None = None
    """The error with which the rank's standard error ends, unless it has lost a peer."""

    @classmethod
    def of(cls, event: RankResult) -> ReportedExit:
        """From a rank-exited event or the exit of an agent-finished event."""
        code, signal, error = event.get("code"), event.get("signal"), event.get("error")
        more = (event.get("kind"), event.get("missing"), event.get("lost_peer", False), event.get("exception"))
        return cls(event["rank"], code, signal, error, *more)


@dataclass(frozen=True, slots=True)
class Finished:
    """
    The end of an agent: DONE, FAILED, STOPPED or, under Slurm, REQUEUE, and the exit of the first rank that failed.

    `time` is when the cause occurred (events.cause_s), by this machine's clock.
    """

    state: StateName
    time: float
    exit: ReportedExit | None
    text: str = ""
    is_refused: bool = False
    """The check of the nodes refused the start of a Slurm job."""
    signalled_s: float | None = None
    """When the agent received the first SIGTERM or SIGINT, by this machine's clock; None if it received none."""
    reported_done: bool = False
    """Every rank of the node had reported that its work was done."""
    left: Mapping[str, int] = field(default_factory=dict)
    """The folders of the program's own files in its working folder, and their bytes."""
    lost: str = ""
    """The failure of a rank that the program of the node has started by hand."""
    lost_peer: bool = False
    """That rank has failed because a rank of another node ended, or closed its connection."""

    @classmethod
    def of(cls, event: Event, correction_s: float) -> Finished:
        """From an agent-finished event."""
        exit_, signalled_s = event.get("exit"), event.get("signalled_s")
        return cls(
            event["state"],
            cause_s(event) + correction_s,
            ReportedExit.of(exit_) if exit_ else None,
            event.get("text", ""),
            event.get("refused", False),
            None if signalled_s is None else signalled_s + correction_s,
            event.get("reported_done", False),
            event.get("left", {}),
            event.get("lost", ""),
            event.get("lost_peer", False),
        )


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """
    The state of one node folder. `alive` is valid only if `same_boot`: another machine, such as a login node, cannot know it.

    `progress` has the content of the progress files, with times of this machine's clock; `stopped` is True if a signal (SIGSTOP)
    has stopped the agent; `cards` is the last sample of the node's cards, `network` the one that NCCL took, None if unknown; `hang` the
    report of ranks that make no progress, None if they do; `peer_answered` is True on the head once its agent has reached another
    node, so that it ends its ranks when it is isolated; `machine` the use of memory and disks now; `stacks` the innermost call of each rank that left stacks; `folder` is
    the path on the node; `saving_ranks` are the ranks that were asked to save and end, None without such a request; `log` is the end of agent.log if the agent wrote no last event.
    """

    node: str
    agent: AgentRecord | None
    alive: bool
    same_boot: bool
    finished: Finished | None
    first_failure: ReportedExit | None
    ranks: Mapping[int, str] = field(default_factory=dict)
    progress: Mapping[int, Json] = field(default_factory=dict)
    log: str = ""
    stacks: Mapping[int, str] = field(default_factory=dict)
    folder: str = ""
    stopped: bool = False
    cards: CardsBody | None = None
    network: NetworkBody | None = None
    hang: HangBody | None = None
    peer_answered: bool = False
    machine: MachineBody | None = None
    saving_ranks: Sequence[int | None] | None = None

    @property
    def agent_state(self) -> str:
        """The state of the agent in a word: running, stopped, gone, not started, or that in which it has finished."""
        if self.finished is not None:
            return str(self.finished.state)
        if self.stopped:
            return "stopped"
        return "running" if self.alive else "not started" if self.agent is None else "gone"

    @classmethod
    def of(cls, body: NodeBody, clock: ClockBounds) -> NodeObservation:
        correction_s = clock.correction_s(body["clock_ahead_s"])
        return cls(
            node=body["node"],
            agent=AgentRecord.of(body["agent"]) if body["agent"] else None,
            alive=body["alive"],
            same_boot=body["same_boot"],
            finished=Finished.of(body["finished"], correction_s) if body["finished"] else None,
            first_failure=ReportedExit.of(body["first_failure"]) if body["first_failure"] else None,
            ranks={int(rank): state for rank, state in body["ranks"].items()},
            progress={int(rank): _with_time(value, correction_s) for rank, value in body["progress"].items()},
            log=body["log"],
            stacks={int(rank): call for rank, call in body["stacks"].items()},
            folder=body["folder"],
            stopped=body["stopped"],
            cards=body.get("cards"),
            network=body.get("network"),
            hang=body.get("hang"),
            peer_answered=body.get("peer_answered", False),
            machine=body.get("machine"),
            saving_ranks=body.get("saving_ranks"),
        )

    @classmethod
    def from_json(cls, data: Json) -> NodeObservation:
        """
        From JSON of `asdict`.

        Raises:
            KeyError, TypeError: it is of another version of orch.
        """
        agent, finished, first_failure = data["agent"], data["finished"], data["first_failure"]
        keys = ("ranks", "progress", "stacks")
        by_rank = {key: {int(rank): value for rank, value in data[key].items()} for key in keys}
        exit_ = finished and finished["exit"] and ReportedExit(**finished["exit"])
        parts = {
            "agent": agent and AgentRecord(**{**agent, "ranks": tuple(agent["ranks"])}),
            "finished": finished and Finished(**{**finished, "exit": exit_}),
            "first_failure": first_failure and ReportedExit(**first_failure),
        }
        return cls(**{**data, **by_rank, **parts})


def _with_time(progress: Json, correction_s: float) -> Json:
    """The content of a progress file, which any program may have written, with its time corrected."""
    time = progress.get("time")
    if correction_s and isinstance(time, int | float) and not isinstance(time, bool):
        return {**progress, "time": time + correction_s}
    return progress


@dataclass(frozen=True, slots=True)
class RunTrace:
    """
    The newest attempt of a run on a node; `nodes` is None if Slurm chose them. `ranks` are the numbers of ranks per node.

    Slurm creates the `batch_log` when it starts the job.
    """

    attempt: int
    nodes: tuple[str, ...] | None
    ranks: tuple[int, ...]
    by_slurm: bool
    batch_log: BatchLog | None = None
    shared: bool = True
    """False if the nodes share no file system, so that each has a run folder with its part of the run."""

    @classmethod
    def of(cls, reply: FindReply) -> RunTrace | None:
        """
        From the endpoint's reply.

        Raises:
            ValueError: job.json is missing, damaged or of another version of orch.
        """
        trace = reply["trace"]
        if trace is None:
            return None
        try:
            job = trace["job"] or {}
            nodes = None if job["nodes"] is None else tuple(str(node) for node in job["nodes"])
            ranks = tuple(int(count) for count in job["ranks"])
            is_known = job["version"] == 1 and len(ranks) > 0 and (nodes is None or len(nodes) == len(ranks))
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"attempt-{trace['attempt']}/job.json is missing or damaged") from exc
        if not is_known:
            raise ValueError(f"attempt-{trace['attempt']}/job.json is of another version of orch")
        shared = (job.get("slurm") or {}).get("shared", True)
        log = BatchLog(**trace["batch_log"]) if trace["batch_log"] else None
        return cls(trace["attempt"], nodes, ranks, trace["by_slurm"], log, shared)
