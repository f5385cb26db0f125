"""The findings about the ranks of a run that continues, in its record when they change: copies of the model that differ, and slow ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.verdict.replicas import differing_replicas
from orchestrator.verdict.slow_ranks import NONE_SLOW, SlowRankWatch

SLOW_RANKS_EVERY_S = 5.0  # the comparison reads the progress of all ranks


class RankFindings:
    """Compares the ranks of one attempt, again and again."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._slow_ranks = SlowRankWatch()
        self._slow_ranks_due_s = 0.0

    def record(self, record: RunRecord, nodes: Sequence[NodeObservation]) -> None:
        """Record what has changed, by the last observation of each node."""
        self._record_replicas(record, nodes)
        self._record_slow_ranks(record, nodes)

    def _record_replicas(self, record: RunRecord, nodes: Sequence[NodeObservation]) -> None:
        differing = None if record.replicas else differing_replicas(nodes)
        if differing is None:
            return
        with suppress(OSError):  # a full disk must not end the supervision
            self._folder.update(replicas=str(differing))
        self._folder.add_event("replicas-differ", str(differing))

    def _record_slow_ranks(self, record: RunRecord, nodes: Sequence[NodeObservation]) -> None:
        """Record the ranks that the others wait for in each step."""
        if time.monotonic() < self._slow_ranks_due_s:
            return
        self._slow_ranks_due_s = time.monotonic() + SLOW_RANKS_EVERY_S
        change = self._slow_ranks.change(nodes)
        if change is None or (change.text is None and record.slow is None):
            return
        names = change.finding.nodes if change.finding else ()
        with suppress(OSError):  # as above
            self._folder.update(slow=change.text, slow_nodes=tuple(dict.fromkeys((*record.slow_nodes, *names))))
        self._folder.add_event("slow-ranks", change.text or NONE_SLOW)
