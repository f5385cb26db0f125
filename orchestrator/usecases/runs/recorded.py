"""A run as far as it is known on this machine, without a question to its nodes: its record, and the last look that anybody took."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord
from orchestrator.verdict.health import Known, Observed
from orchestrator.verdict.overview import Overview, overview


@dataclass(frozen=True, slots=True)
class Recorded:
    """`verdict` is empty for a run whose health only its nodes know; `looked_s` is the time of the last look, in seconds since 1970."""

    record: RunRecord
    overview: Overview
    verdict: str
    looked_s: float | None


def recorded(folder: RunFolder, now_s: float) -> Recorded:
    """
    Read the record and the kept observations.

    Raises:
        RunNotFound: the record cannot be read.
    """
    record = folder.read()
    nodes = []
    for at_s, data in folder.kept_observations(record.attempt).values():
        with suppress(KeyError, TypeError):  # of another version of orch
            nodes.append(Observed(NodeObservation.from_json(data), at_s, is_current=False))
    found = overview(Known(record, now_s, observed=nodes))
    is_known = record.state.final or found.health in ("waiting", "failing")
    return Recorded(record, found, found.verdict if is_known else "", max((each.at_s for each in nodes), default=None))
