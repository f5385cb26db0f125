"""Compose the present state of a run, for the last line of a terminal on which the run is watched. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import MOST_NAMED
from orchestrator.run import RunRecord
from orchestrator.verdict.failing import waits
from orchestrator.verdict.live_run import LiveRun
from orchestrator.verdict.training import Pace, training_of


class LiveRuns:
    """Composes the present state of one run, attempt by attempt."""

    def __init__(self) -> None:
        self._attempt = 0
        self._pace = Pace()
        self._names: tuple[str, ...] = ()
        self._folded = ""

    def now(
        self, record: RunRecord, nodes: Iterable[NodeObservation], names: Iterable[str], queue: str | None = None
    ) -> LiveRun:
        """The present state, by the last observations of `nodes`; `names` are the nodes of the attempt, `queue` the reason of a waiting job."""
        if record.attempt != self._attempt:
            self._attempt, self._pace = record.attempt, Pace()
        if self._names != (current := tuple(names)):
            self._names = current
            self._folded = ",".join(current) if len(current) <= MOST_NAMED else fold(current)
        training = training_of({rank: each for node in nodes for rank, each in node.progress.items()})
        return LiveRun(
            state=record.state.value,
            begun_s=datetime.fromisoformat(record.created).timestamp() if record.created else 0.0,
            attempt=record.attempt,
            nodes=self._folded,
            waits=waits(record) or queue,
            training=training and self._pace.add(training),
        )
