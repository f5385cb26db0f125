"""
The state of a run in one value, with one sentence of judgement, for `orch status` and `orch top`. Pure.

It is computed from the record, the newest observations of the nodes, and those that were kept for nodes that do not answer now. A value
that nobody reported is None: nothing is estimated.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.findings import Finding
from orchestrator.run import RunRecord, RunState, trainer_setting
from orchestrator.verdict.health import Health, Known, PortRate, duration_s, judged, times
from orchestrator.verdict.slow_ranks import newest_cpu_wait, newest_lateness
from orchestrator.verdict.training import Training, training_of

if TYPE_CHECKING:
    from orchestrator.node.protocol.agents import MachineBody

HOT_C = 85.0  # from which on a temperature is shown
EVENT_OF = {"slow-rank": "slow-ranks", "replicas": "replicas-differ", "no-progress": "no-progress"}
"""Check of a finding -> the event by which the supervisor recorded it."""


@dataclass(frozen=True, slots=True)
class CardView:
    """A card in the last sample of the vendor's tool; None where the tool prints no value."""

    index: int
    percent: float | None
    memory_mib: float | None
    temperature_c: float | None
    state: str | None


@dataclass(frozen=True, slots=True)
class Cards:
    """The use of a node's cards in the last sample: the lowest and the highest, never a mean."""

    low_percent: float
    high_percent: float
    memory_mib: float | None
    """The memory in use on the card that uses most."""
    hottest_c: float | None
    """The temperature of the hottest card, if that card is hot."""
    age_s: float
    each: tuple[CardView, ...] = ()


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank. `behind`: the collectives that it has enqueued less than the furthest rank, known while no rank makes progress."""

    rank: int
    state: str
    phase: str | None
    step: int | None
    steps: int | None
    """How many there will be."""
    age_s: float | None
    behind: int | None = None
    late_s: float | None = None
    cpu_wait: float | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node; `age_s` is that of the values if the node does not answer now, else None, and `problem` the reason."""

    node: str
    agent: str
    ranks: tuple[RankView, ...] = ()
    cards: Cards | None = None
    machine: MachineBody | None = None
    rate: PortRate | None = None
    age_s: float | None = None
    problem: str = ""

    @property
    def steps(self) -> tuple[int, int] | None:
        """The lowest and the highest step of the ranks."""
        steps = [rank.step for rank in self.ranks if rank.step is not None]
        return (min(steps), max(steps)) if steps else None

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(rank.phase for rank in self.ranks if rank.phase))

    @property
    def spread(self) -> tuple[float, ...]:
        """Sorts nodes: those first that do not answer, whose ranks differ, or that are late."""
        low, high = self.steps or (0, 0)
        late_s = max((rank.late_s for rank in self.ranks if rank.late_s is not None), default=0.0)
        behind = max((rank.behind for rank in self.ranks if rank.behind is not None), default=0)
        unused = 0.0 if self.cards is None else self.cards.high_percent - self.cards.low_percent
        return (-bool(self.problem), -behind, low - high, -len(self.phases), -max(0.0, late_s), -unused)


@dataclass(frozen=True, slots=True)
class Found:
    """A finding and its age, None if that is unknown."""

    text: str
    nodes: tuple[str, ...]
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of the timeline."""

    time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a run."""

    id: str
    state: str
    health: Health
    verdict: str
    """One sentence."""
    training: Training | None
    training_age_s: float | None
    eta_s: float | None
    """The seconds from now to the end of the steps; None if the program does not report enough."""
    attempt: int
    max_retries: int | None
    started: str
    ended: str | None
    duration_s: float | None
    command: str
    folder: str | None
    """The folder in which the run was launched."""
    checkpoints: str | None
    """The folder of the shared trainer's checkpoints on the nodes; None for another program."""
    cards: tuple[float, float] | None
    """The use of the least and of the most used card of all nodes, per cent."""
    nodes: tuple[NodeView, ...]
    findings: tuple[Found, ...]
    moments: tuple[Moment, ...] = ()

    @property
    def retries_left(self) -> int | None:
        """The attempts that may follow this one."""
        return None if self.max_retries is None else max(0, self.max_retries + 1 - self.attempt)

    @property
    def is_over(self) -> bool:
        return RunState(self.state).final

    def to_json(self) -> dict[str, Any]:
        training = None if self.training is None else self.training.to_json()
        return {**asdict(self), "training": training, "retries_left": self.retries_left}


def overview(known: Known, timed: Callable[[Training], Training] = lambda training: training) -> Overview:
    """The overview of a run by the evidence; `timed` adds the speed of a program that does not report it, by earlier looks."""
    record, plan, now_s = known.record, known.plan, known.now_s
    progress = {rank: report for observed in known.observed for rank, report in observed.node.progress.items()}
    training = training_of(progress)
    training = None if training is None else _with_earlier_saves(timed(training), record)
    age_s = None if training is None else training.age_s(now_s)
    eta_s = training.eta_s if training and not record.state.final else None
    nodes = tuple(_node_views(known))
    used = [percent for node in nodes if node.cards for percent in (node.cards.low_percent, node.cards.high_percent)]
    found = tuple(_found(finding, known) for finding in known.findings)
    health, verdict = judged(known, [each.text for each in found])
    return Overview(
        id=record.id,
        state=record.state.value,
        health=health,
        verdict=verdict,
        training=training,
        training_age_s=age_s,
        eta_s=None if eta_s is None else max(0.0, eta_s - (age_s or 0.0)),
        attempt=record.attempt,
        max_retries=None if plan is None else plan.max_retries,
        started=record.created,
        ended=record.ended,
        duration_s=duration_s(record, now_s),
        command=_command(record, plan),
        folder=record.code.get("folder"),
        checkpoints=_checkpoints(known),
        cards=(min(used), max(used)) if used else None,
        nodes=nodes,
        findings=found,
        moments=tuple(_moments(known)),
    )


def port_rate(before: MachineBody, after: MachineBody) -> PortRate | None:
    """The traffic of a node's RDMA ports between two looks; None without ports, or if their counters began again."""
    earlier = {port["name"]: port for port in before["ports"]}
    pairs = [(earlier[port["name"]], port) for port in after["ports"] if port["name"] in earlier]
    seconds = after["monotonic_s"] - before["monotonic_s"]
    changes = [[new[key] - old[key] for old, new in pairs] for key in ("received", "sent", "errors")]
    if not pairs or seconds <= 0 or any(change < 0 for each in changes for change in each):
        return None
    received, sent, errors = map(sum, changes)
    return PortRate(received / seconds, sent / seconds, errors)


def _with_earlier_saves(training: Training, record: RunRecord) -> Training:
    """A save of an earlier attempt counts until this one has saved."""
    if training.saved is None:
        return training
    earlier = [saved for attempt in record.attempts if isinstance(saved := attempt.get("saved"), int)]
    best = max([training.saved, *(saved for saved in earlier if saved <= training.step)])
    return replace(training, saved=best)


def _node_views(known: Known) -> list[NodeView]:
    """The nodes in node order, those that were never observed at the end."""
    late = newest_lateness(known.current)
    hung = {int(rank): body for node in known.current if node.hang for rank, body in node.hang["ranks"].items()}
    groups = {rank: body["groups"].values() for rank, body in hung.items() if body["groups"]}
    # the collectives of a rank in all groups, known while no rank makes progress
    enqueued = {rank: sum(group["enqueued"] for group in of_rank) for rank, of_rank in groups.items()}
    views = []
    for observed in known.observed:
        node, now_s, problem, age_s = observed.node, known.now_s, "", None
        if not observed.is_current:
            problem, age_s = known.missing.get(node.node, "it does not answer"), max(0.0, now_s - observed.at_s)
        ranks = []
        for rank in sorted({*node.ranks, *node.progress}):
            progress = node.progress.get(rank, {})
            phase, training = progress.get("phase"), training_of({rank: progress})
            view = RankView(
                rank,
                state=node.ranks.get(rank, ""),
                phase=phase if isinstance(phase, str) else None,
                step=None if training is None else training.step,
                steps=None if training is None else training.steps,
                age_s=None if training is None else training.age_s(now_s),
                behind=max(enqueued.values()) - enqueued[rank] if rank in enqueued else None,
                late_s=late.get(rank),
                cpu_wait=newest_cpu_wait(progress),
            )
            ranks.append(view)
        cards, rate = _cards(node, now_s), known.rates.get(node.node)
        views.append(NodeView(node.node, node.agent_state, tuple(ranks), cards, node.machine, rate, age_s, problem))
    shown = {view.node for view in views}
    views += [NodeView(name, "no answer", problem=why) for name, why in known.missing.items() if name not in shown]
    return views


def _cards(node: NodeObservation, now_s: float) -> Cards | None:
    """The last sample of the cards that the ranks should use: the busiest, as many as the ranks need."""
    if node.cards is None or node.finished is not None:
        return None
    loads = sorted(_values(node, "utilization_percent"), reverse=True)[: node.cards["expected"]]
    if not loads:
        return None
    memory, heat = _values(node, "memory_used_mib"), _values(node, "temperature_c")
    hottest = max(heat, default=0.0)
    age_s = max(0.0, now_s - node.cards["time"])
    names = ("index", "utilization_percent", "memory_used_mib", "temperature_c", "state")
    # an agent of another version may leave a value out
    each = tuple(CardView(*(card.get(name) for name in names)) for card in node.cards["cards"])  # type: ignore[arg-type]
    return Cards(loads[-1], loads[0], max(memory, default=None), hottest if hottest >= HOT_C else None, age_s, each)


def _values(node: NodeObservation, name: str) -> list[float]:
    cards = node.cards["cards"] if node.cards else []
    return [value for card in cards if isinstance(value := card.get(name), int | float)]


def _found(finding: Finding, known: Known) -> Found:
    """The finding with its age: by the report of the nodes, else by the supervisor's event."""
    hangs = [observed.node.hang["time"] for observed in known.observed if observed.node.hang is not None]
    name = EVENT_OF.get(finding.check, "")
    events = [event["time"] for event in known.events if event.get("event") == name]
    since_s = max(hangs) if finding.check == "no-progress" and hangs else max(events, default=None)
    return Found(str(finding), finding.nodes, None if since_s is None else max(0.0, known.now_s - since_s))


def _moments(known: Known) -> list[Moment]:
    """The launch, the ends of attempts and the supervisor's observations, oldest first."""
    record = known.record
    moments = [Moment(at_s, "launched") for at_s in times(record.created)]
    for attempt in record.attempts:
        saved = f"; saved: step {attempt['saved']}" if attempt.get("saved") else ""
        text = f"attempt {attempt.get('attempt')} failed: {attempt.get('message')}{saved}"
        moments += [Moment(at_s, text) for at_s in times(attempt.get("ended"))]
    moments += [Moment(event["time"], event["text"]) for event in known.events]
    return sorted(moments, key=lambda moment: moment.time_s)


def _command(record: RunRecord, plan: LaunchPlan | None) -> str:
    """The program and its arguments, or the settings of the shared trainer."""
    program = record.request.get("program") or {}
    args = list(plan.program.args if plan is not None else program.get("args", ()))
    kind = plan.program.kind if plan is not None else program.get("kind")
    return shlex.join(["trainer", *args] if kind == "trainer" else map(str, args))


def _checkpoints(known: Known) -> str | None:
    """The shared trainer's `out`: absolute, or in the folder in which the ranks run; by default that of the run."""
    plan = known.plan
    if plan is None or plan.program.kind != "trainer":
        return None
    out = trainer_setting(plan.program, plan.config, "out")
    if out is not None and not isinstance(out, str):
        return None
    folder = next((observed.node.folder for observed in known.observed if observed.node.folder), "")
    if not folder:
        return out if out and out.startswith(("/", "~")) else None
    run_dir = posixpath.dirname(posixpath.dirname(folder))
    return posixpath.join(run_dir, *(("code", plan.program.cwd or "", out) if out else ("checkpoints",)))
