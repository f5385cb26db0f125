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
    """The conditions that hold now, with the evidence, by the last observation of each node of the attempt."""
    running = [node for node in nodes if node.finished is None]
    idle = [finding for finding in hardware_findings(running) if finding.check == "idle-cards"]
    not_finite = [
        f"rank {rank}, step {progress.get('step')}: {loss}"
        for node in running
        for rank, progress in node.progress.items()
        if isinstance(loss := progress.get("loss"), float) and not math.isfinite(loss)
    ]
    more = f" and {len(not_finite) - 1} more" if len(not_finite) > 1 else ""
    found = {
        "NO_PROGRESS": positions_without_progress(running),
        "SLOW": record.slow or "",
        "DIFFERS": record.replicas or "",
        "NOT_FINITE": not_finite[0] + more if not_finite else "",
        "IDLE_CARDS": "; ".join(f"{fold(finding.nodes)}: {finding.text}" for finding in idle),
    }
    return {name: evidence for name, evidence in found.items() if evidence}
