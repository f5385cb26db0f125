"""The debug ladder: the same program on 1 rank, 2 ranks, one full node, two nodes and all nodes, each for a few steps."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, OrchError
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.node.number_text import counted, format_numbers
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.portable.names.slurm_options import option_value, time_limit_s
from orchestrator.progress import OnProgress
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord, RunState
from orchestrator.supervision.queries import observe_by_owner
from orchestrator.usecases.durations import clock, seconds
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.runs.stop import stop
from orchestrator.verdict.observe import observe_reachable

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

NAME = "ladder"
POLL_S = 1.0
JOB_START_S = 600.0
"""The time of a Slurm job before its ranks start: set-up lines, the image of a container, the check of the nodes."""


class RungKind(Enum):
    """The kind of a rung, with the part that it adds, which is to be examined if it fails, and the fact that it proves if it passes."""

    ONE_RANK = (
        "the program itself, its data and its software: communication has no part in this failure",
        "the program, its data and its software work in one rank",
    )
    TWO_RANKS = (
        "what two ranks of one node share: process group and backend, the device of each rank, files that both write",
        "two ranks of one node communicate",
    )
    FULL_NODE = (
        "the other devices of the node and the links between them, its memory, /dev/shm and CPUs",
        "one full node works, with all its devices",
    )
    TWO_NODES = (
        "the network between the nodes (interfaces, firewall, RDMA), and how the second node differs: software, data, devices",
        "two nodes communicate",
    )
    ALL_NODES = (
        "the nodes that are new in this rung, and what grows with the number of ranks: memory, time limits, batch size",
        "the program works on all nodes",
    )

    @property
    def suspects(self) -> str:
        """The parts to examine if this rung is the first to fail."""
        return self.value[0]

    @property
    def proof(self) -> str:
        """The fact that this rung proves if it passes."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Rung:
    """One run of the ladder."""

    kind: RungKind
    nodes: tuple[str, ...]
    """The names of the nodes; none if Slurm chooses them."""
    node_count: int
    ranks: int
    """The number of ranks on all nodes together."""

    def __str__(self) -> str:
        return f"{counted(self.ranks, 'rank')} on {fold(self.nodes) or counted(self.node_count, 'node')}"

    @property
    def shape(self) -> str:
        return f"{self.node_count}x{self.ranks // self.node_count}"


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """The limits of each rung."""

    steps: int
    limit_s: float

    @classmethod
    def of(cls, steps: int, limit: str) -> LadderOptions:
        """From the command line; UsageError if `limit` is not a time span."""
        return cls(steps, seconds("--limit", limit))


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of a launch, and the warnings about it."""

    arguments: LaunchArguments
    options: LadderOptions
    rungs: tuple[Rung, ...]
    warnings: tuple[str, ...]

    def arguments_of(self, rung: Rung) -> LaunchArguments:
        given, number = self.arguments, self.rungs.index(rung) + 1
        limit = f"{self.options.limit_s:g}"
        short = (*short_settings(self.options.steps), f"ddp_timeout={limit}", f"hang_timeout={limit}")
        is_part = rung.kind in (RungKind.ONE_RANK, RungKind.TWO_RANKS)
        return replace(
            given,
            nodes=",".join(rung.nodes) or None,
            shape=rung.shape if given.shape is not None or is_part or not rung.nodes else None,
            settings=given.settings if given.program else (*given.settings, *short),
            name=given.name or NAME,
            note=given.note or f"rung {number} of {len(self.rungs)} of a ladder: {rung}",
            debug=True,
        )


def short_settings(steps: int) -> Iterator[str]:
    """The settings that keep a run of the shared trainer short, and away from the checkpoints and reports of the training."""
    yield f"steps={steps}"
    yield "out=ladder-checkpoints"  # in the run's folder
    yield "resume=none"
    yield "report="


def plan_ladder(arguments: LaunchArguments, options: LadderOptions, on_progress: OnProgress) -> Ladder:
    """Plan the launch on all nodes without a start, and derive the rungs from it; OrchError as from plan_launch."""
    arguments = as_trial(arguments)
    planned = plan_launch(replace(arguments, debug=True), on_progress)
    planned.close()
    return Ladder(as_short_jobs(arguments, planned.plan, options), options, rungs_of(planned.plan), planned.warnings)


def as_trial(arguments: LaunchArguments) -> LaunchArguments:
    """The arguments of the same launch as a trial, whose first failure is its result."""
    arguments = replace(arguments, max_retries=0, elastic=None, is_trial=True)
    if not arguments.by_scheduler:
        return arguments
    if arguments.here:
        return replace(arguments, max_retries=None)  # a step is never restarted
    return _with_slurm(arguments, requeue="never", max_retries="0", spare_nodes="0")


def as_short_jobs(arguments: LaunchArguments, plan: LaunchPlan, options: LadderOptions) -> LaunchArguments:
    """
    The arguments with the time limit of a rung's job, which starts earlier if it is short, and ends even if nobody stops it.

    Nodes that are too small for the whole launch are excluded from the small rungs, too.
    """
    if not arguments.by_scheduler or arguments.here:
        return arguments
    limit_s = time_limit_s(option_value(plan.slurm, "time") or "") or math.inf
    fields = {"time": str(math.ceil(min(limit_s, options.limit_s + JOB_START_S) / 60))}
    if excluded := option_value(plan.slurm, "exclude"):
        fields["exclude"] = excluded
    return _with_slurm(arguments, **fields)


def _with_slurm(arguments: LaunchArguments, **fields: str) -> LaunchArguments:
    """The arguments with these fields of `slurm:` instead of those given."""
    pairs = zip(arguments.slurm, arguments.slurm_settings, strict=True)
    kept = [given for given, setting in pairs if setting.path[0] not in fields]
    added = (("--set", f"slurm.{name}={value}") for name, value in fields.items())
    return replace(arguments, slurm=(*kept, *added))


def rungs_of(plan: LaunchPlan, first: Collection[str] = ()) -> tuple[Rung, ...]:
    """
    The rungs of a launch, each with more ranks than the one before: a full node of two ranks is the rung of two ranks.

    Args:
        first: nodes that the small rungs have, if they are in the plan. If Slurm chooses the nodes, larger rungs have any.
    """
    nodes = sorted(plan.nodes[: None if plan.by_count else plan.node_count], key=lambda node: node.name not in first)
    names = tuple(node.name for node in nodes if node.name in first or not plan.by_count)
    ranks = [len(node.ranks) for node in nodes]

    def rung(kind: RungKind, count: int, most: int = plan.world_size) -> Rung:
        return Rung(kind, names[:count] if count <= len(names) else (), count, min(sum(ranks[:count]), most))

    rungs = [rung(RungKind.ONE_RANK, 1, 1)]
    for larger in (
        rung(RungKind.TWO_RANKS, 1, 2),
        rung(RungKind.FULL_NODE, 1),
        rung(RungKind.TWO_NODES, min(2, plan.node_count)),
        rung(RungKind.ALL_NODES, plan.node_count),
    ):
        if larger.ranks > rungs[-1].ranks:
            rungs.append(larger)
    return tuple(rungs)


class End(Enum):
    """Why a rung of a user's program was stopped before it ended by itself."""

    STEPS = auto()
    """All ranks made the steps."""
    NO_STEPS = auto()
    """The program reports no steps, and ran until the time limit without a failure."""
    BEHIND = auto()
    """Not all ranks made the steps within the time limit."""
    UNOBSERVED = auto()
    """Not all nodes could be observed within the time limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rung ended, in words. It has passed if its exit code is 0."""

    text: str
    exit_code: int = 0


class StepLimit:
    """
    Stops the run of a user's program, which does not end by itself: once all ranks have made the steps, or at the time limit.

    A thread, while the run is followed; for a `with` statement.
    """

    def __init__(
        self,
        run_id: str,
        options: LadderOptions,
        on_message: Callable[[str], None],
        *,
        must_report: bool,
        launcher: Launcher | None = None,
    ) -> None:
        """
        Watch a run.

        Args:
            must_report: the program has reported steps on an earlier rung, so that none means a hang.
            launcher: a connected launcher; None: the owner of the run is queried, and the nodes themselves if it does not answer.
        """
        self._folder = find_run(run_id)
        self._options = options
        self._on_message = on_message
        self._must_report = must_report
        self._launcher = launcher
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="step limit", daemon=True)
        self.steps: dict[int, int] = {}
        """The last step that each rank reported."""
        self.began_s = time.monotonic()
        """When the ranks had started; of a job that has not started, when it was submitted."""
        self.end: End | None = None
        self._has_observed = False
        """All nodes have answered at least once."""
        self._failure = ""
        """The failure of an observation that was shown last."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        plan = self._folder.read_plan()
        has_started = not plan.by_scheduler  # a job waits in the queue first
        with nullcontext(self._launcher) if self._launcher else closing(launcher_for(plan)) as launcher:
            while self.end is None and not self._is_over.wait(POLL_S):
                nodes = self._observed(plan, launcher)
                self.steps.update(reported_steps(nodes))
                self._has_observed |= len(nodes) == plan.node_count
                # every rank of the plan: a node names a rank only once it has started it
                if all(self.steps.get(rank, 0) >= self._options.steps for rank in range(plan.world_size)):
                    self.end = End.STEPS
                if nodes and not has_started:
                    has_started, self.began_s = True, time.monotonic()
                if has_started and time.monotonic() > self.began_s + self._options.limit_s:
                    at_limit = End.BEHIND if self.steps or self._must_report else End.NO_STEPS
                    self.end = self.end or (at_limit if self._has_observed else End.UNOBSERVED)
        if self.end is not None:
            try:
                stop(self._folder, self._on_message)
            except OrchError as exc:
                self._on_message(str(exc))

    def _observed(self, plan: LaunchPlan, launcher: Launcher) -> Sequence[NodeObservation]:
        """The reports of the nodes that answer; a failure may pass."""
        try:
            answer = observe_by_owner(self._folder)  # needs no login
            return answer[0] if answer else observe_reachable(self._folder, plan, launcher, None).nodes
        except NodesError:  # the supervisor of the run judges silent nodes
            return ()
        except (OrchError, OSError, RuntimeError) as exc:  # RuntimeError: the user may have no more threads
            if self._failure != str(exc):
                self._failure = str(exc)
                self._on_message(f"the ranks cannot be observed: {exc}")
            return ()


def reported_steps(nodes: Sequence[NodeObservation]) -> dict[int, int]:
    steps = {rank: progress.get("step") for node in nodes for rank, progress in node.progress.items()}
    return {rank: step for rank, step in steps.items() if isinstance(step, int)}


def outcome_of(record: RunRecord, options: LadderOptions, end: End | None, steps: Mapping[int, int]) -> Outcome:
    """
    The outcome of a rung whose run is over.

    Args:
        end: why StepLimit has stopped the run; None if it has not.
        steps: the last step that each rank reported.
    """
    if record.state is RunState.DONE:
        return Outcome("ended with exit code 0")
    if record.state is not RunState.STOPPED or end is None:
        return Outcome(record.outcome, record.exit_code)
    if end is End.STEPS:
        return Outcome(f"all ranks made {options.steps} steps")
    if end is End.NO_STEPS:
        return Outcome(f"ran {clock(options.limit_s)} without a failure; the program reports no steps")
    if end is End.UNOBSERVED:
        text = f"the ranks could not be observed in {clock(options.limit_s)}: not all nodes answered, so the run was stopped"
        return Outcome(text, RunState.FAILED.exit_code)
    last = "no rank reported a step"
    if steps:
        slow = sorted(rank for rank, step in steps.items() if step == min(steps.values()))
        last = f"rank {format_numbers(slow)} reported step {min(steps.values())} last"
    made = f"not all ranks made {options.steps} steps in {clock(options.limit_s)}, so the run was stopped"
    return Outcome(f"{made}: {last}", RunState.FAILED.exit_code)
