"""Look at a run: refresh its record, and compute its overview; what is known of nodes that do not answer is kept from earlier looks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass

from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, RunNotFound
from orchestrator.launchers import launcher_for
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.findings import Finding, Severity
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord
from orchestrator.usecases.runs.refresh import Refreshed, refresh
from orchestrator.verdict.health import Known, Observed, PortRate
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.overview import Cards, CardView, NodeView, Overview, RankView, overview, port_rate
from orchestrator.verdict.training import Pace, Training

__all__ = ["CardView", "Cards", "Look", "Looks", "NodeView", "Overview", "RankView", "Training"]

MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it is now: the answers of the nodes, and the overview."""

    refreshed: Refreshed
    overview: Overview
    missing: NodesError | None
    """The failures of the nodes that did not answer."""


class Looks:
    """Looks at one run, again and again; successive looks show the speed of programs that do not report it, and traffic."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._before: Sequence[NodeObservation] = ()
        self._rates: dict[str, PortRate] = {}
        self._pace = Pace()

    def look(self, on_progress: OnProgress = no_progress, *, may_prompt: bool = True) -> Look:
        """
        Query the nodes and the scheduler.

        Args:
            may_prompt: False if logins must succeed without prompts.

        Raises:
            RunNotFound: the record cannot be read.
        """
        terminal = Terminal(may_prompt=may_prompt)
        try:
            refreshed = refresh(self._folder, terminal=terminal, on_progress=on_progress, diagnoses=True)
        except NodesError as error:
            refreshed = Refreshed(self._folder, self._folder.read(), missing=error)
        now_s, record = time.time(), refreshed.record
        attempt = refreshed.status.attempt if refreshed.status is not None else record.attempt
        plan = _plan(self._folder)
        observed = self._observed(refreshed.nodes, now_s, attempt, plan)
        self._add_rates(refreshed.nodes)
        queue = refreshed.queue
        known = Known(
            record,
            now_s,
            plan=plan,
            observed=observed,
            missing=_missing(refreshed.missing),
            findings=list(_findings(refreshed, record))[:MOST_FINDINGS],
            waits=refreshed.waits,
            queue=queue,
            position=refreshed.status.position if refreshed.status is not None else "",
            warnings=[*refreshed.warnings(), *filter(None, [refreshed.unwritten])],
            events=self._folder.events(),
            is_launching=is_launching(record),
            rates=self._rates,
        )
        return Look(refreshed, overview(known, self._pace.add), refreshed.missing)

    def _observed(
        self, nodes: Sequence[NodeObservation], now_s: float, attempt: int, plan: LaunchPlan | None
    ) -> list[Observed]:
        """The nodes that answered, and the kept observations of the others."""
        kept = _kept_observations(self._folder, attempt, without={node.node for node in nodes})
        if nodes:
            self._folder.keep_observations({node.node: (now_s, asdict(node)) for node in nodes}, attempt)
        position = {node.name: index for index, node in enumerate(plan.nodes if plan is not None else ())}
        observed = [*(Observed(node, now_s) for node in nodes), *kept]
        return sorted(observed, key=lambda observed: position.get(observed.node.node, len(position)))

    def _add_rates(self, nodes: Sequence[NodeObservation]) -> None:
        before = {node.node: node.machine for node in self._before}
        for node in nodes:
            earlier = before.get(node.node)
            if earlier is not None and node.machine is not None and (rate := port_rate(earlier, node.machine)):
                self._rates[node.node] = rate
        self._before = nodes or self._before


def stacks(run: str, node: str) -> dict[int, str]:
    """
    The stacks of the ranks of a node now, as they report them; empty texts for those that do not answer.

    Raises:
        NodesError: the node cannot be reached.
    """
    folder = find_run(run)
    with closing(launcher_for(folder.read_plan())) as launcher:
        for attempt in launcher.attempt_folders(launcher.attempt(), {node}):
            reply = attempt.endpoint.ranks(attempt.attempt_dir, [node])
            if node in reply:
                return {int(rank): body["stacks"] for rank, body in reply[node].items()}
    return {}


def _plan(folder: RunFolder) -> LaunchPlan | None:
    with suppress(RunNotFound):  # as of a launch that failed
        return folder.read_plan()
    return None


def _missing(error: NodesError | None) -> Mapping[str, str]:
    """The nodes that did not answer; the name of a failure may list the nodes that share a machine."""
    failures = error.failures if error is not None else ()
    return {name: failure.reason for failure in failures for name in failure.node.split(", ")}


def _findings(refreshed: Refreshed, record: RunRecord) -> Iterator[Finding]:
    """The findings, the most serious first; those in the record remain true of the run."""
    if record.replicas:
        yield Finding(Severity.WARN, "replicas", record.replicas)
    yield from refreshed.findings()
    if record.slow:
        yield Finding(Severity.WARN, "slow-rank", record.slow)


def _kept_observations(folder: RunFolder, attempt: int, without: Collection[str] = ()) -> list[Observed]:
    """The observations that earlier looks have kept, but none of the nodes `without`."""
    found = []
    for name, (at_s, data) in folder.kept_observations(attempt).items():
        if name not in without:
            with suppress(KeyError, TypeError):  # of another version of orch
                found.append(Observed(NodeObservation.from_json(data), at_s, is_current=False))
    return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run as far as it is known on this machine. `verdict` is empty for a run whose health only its nodes know; `looked_s` is the time of the last look, in seconds since 1970."""

    record: RunRecord
    overview: Overview
    verdict: str
    looked_s: float | None


def recorded(folder: RunFolder, now_s: float) -> Recorded:
    """The record and the last look that anybody took, without a question to the nodes; RunNotFound if the record cannot be read."""
    record = folder.read()
    nodes = _kept_observations(folder, record.attempt)
    found = overview(Known(record, now_s, observed=nodes))
    is_known = record.state.final or found.health in ("waiting", "failing")
    return Recorded(record, found, found.verdict if is_known else "", max((each.at_s for each in nodes), default=None))
