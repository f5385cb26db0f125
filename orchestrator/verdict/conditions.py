"""The conditions that are wrong with a run that continues, by name, for hooks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import RunRecord
from orchestrator.verdict.hangs import positions_without_progress
from orchestrator.verdict.hardware import hardware_findings

WORDS: Mapping[str, str] = {
    "NO_PROGRESS": "the ranks make no progress",
    "SLOW": "a rank is slow",
    "DIFFERS": "ranks have different copies of the model",
    "NOT_FINITE": "the loss is not finite",
    "IDLE_CARDS": "cards are idle",
}
"""The conditions as a sentence."""


def conditions(record: RunRecord, nodes: Sequence[NodeObservation]) -> dict[str, str]:
    """
    Return the conditions that hold now, with the evidence.

    Args:
        nodes: the last observation of each node of the attempt.
    """
    running = [node for node in nodes if node.finished is None]
    idle = [finding for finding in hardware_findings(running) if finding.check == "idle-cards"]
    found = {
        "NO_PROGRESS": positions_without_progress(running),
        "SLOW": record.slow or "",
        "DIFFERS": record.replicas or "",
        "NOT_FINITE": _not_finite(running),
        "IDLE_CARDS": "; ".join(f"{fold(finding.nodes)}: {finding.text}" for finding in idle),
    }
    return {name: evidence for name, evidence in found.items() if evidence}


def _not_finite(nodes: Sequence[NodeObservation]) -> str:
    """The ranks whose last reported loss is no number, or infinite."""
    found = [
        f"rank {rank}, step {progress.get('step')}: {loss}"
        for node in nodes
        for rank, progress in node.progress.items()
        if isinstance(loss := progress.get("loss"), float) and not math.isfinite(loss)
    ]
    return found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "") if found else ""
