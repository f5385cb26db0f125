"""Find ranks whose copy of the model differs from the others, by the fingerprints in their progress (trainer/parallel). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.ranks.stacks import ranks_text
from orchestrator.portable.findings import Finding, Severity

KEY, EVIDENCE = "replicas", "fingerprints in the ranks' progress"
MOST_GROUPS = 4

Fingerprints = Mapping[int, str]
"""The fingerprints of one value after one step, by rank."""


def differing_replicas(nodes: Sequence[NodeObservation]) -> Finding | None:
    """The finding about the first step at which not all ranks have equal fingerprints; None if there is none, or a rank is missing."""
    node_of = {rank: node.node for node in nodes for rank in node.progress}
    for step, name, fingerprints in _compared(nodes):
        groups = _groups(fingerprints)
        if len(groups) > 1:
            all_differ = len(groups) == len(fingerprints)  # two equal ranks: gradients are averaged
            cause = _unsynchronised(nodes) if all_differ else ""
            if not cause:
                return _finding(step, name, groups, node_of)
            remedy = (
                "in each step call the wrapped model, not its .module, and make the last backward() outside of no_sync(); "
                "checkpoints of this run hold the model of one rank"
            )
            text = f"each rank trains its own model: the {name} differ after step {step}, as {cause}"
            return Finding(Severity.WARN, KEY, text, (), EVIDENCE, remedy)
    return None


def _unsynchronised(nodes: Sequence[NodeObservation]) -> str:
    """The reason why gradients are not averaged, as a rank reports it; empty if none does."""
    reports = [report for node in nodes for progress in node.progress.values() if (report := _report(progress))]
    return next((str(report["unsynchronised"]) for report in reports if report.get("unsynchronised")), "")


def _compared(nodes: Sequence[NodeObservation]) -> Iterator[tuple[str, str, Fingerprints]]:
    """Step, name of the value and fingerprints, oldest step first; only where all ranks have reported."""
    reports = {
        rank: report for node in nodes for rank, progress in node.progress.items() if (report := _report(progress))
    }
    count = next((report["count"] for report in reports.values()), 0)
    if not reports or len(reports) != count:
        return
    steps = {rank: report["steps"] for rank, report in reports.items()}
    common = set.intersection(*(set(of_rank) for of_rank in steps.values()))
    for step in sorted(common, key=_order):
        values = {rank: of_rank[step] for rank, of_rank in steps.items()}
        if all(isinstance(of_rank, dict) for of_rank in values.values()):
            for name in sorted(set.intersection(*(set(of_rank) for of_rank in values.values())), reverse=True):
                yield step, name, {rank: str(of_rank[name]) for rank, of_rank in values.items()}


def _report(progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fingerprints in a progress file, which any program may have written."""
    report = progress.get(KEY)
    is_valid = (
        isinstance(report, dict) and isinstance(report.get("count"), int) and isinstance(report.get("steps"), dict)
    )
    return report if is_valid else None


def _order(step: str) -> tuple[int, str]:
    digits = step.partition(" ")[0]
    return int(digits) if digits.isdecimal() else 0, step


def _groups(fingerprints: Fingerprints) -> list[list[int]]:
    """The ranks with equal fingerprints, the largest group first."""
    groups: dict[str, list[int]] = {}
    for rank, value in sorted(fingerprints.items()):
        groups.setdefault(value, []).append(rank)
    return sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))


def _finding(step: str, name: str, groups: Sequence[Sequence[int]], node_of: Mapping[int, str]) -> Finding:
    total = sum(map(len, groups))
    majority = groups[0]
    wrong = sorted(rank for ranks in groups[1:] for rank in ranks) if 2 * len(majority) > total else []
    if wrong:
        verb = "differs" if len(wrong) == 1 else "differ"
        text = f"{ranks_text(wrong)} {verb} from the {len(majority)} others in the {name} after step {step}"
        nodes = tuple(dict.fromkeys(node_of[rank] for rank in wrong))
    else:
        shown = " and ".join(map(ranks_text, groups[:MOST_GROUPS])) + (" and more" if len(groups) > MOST_GROUPS else "")
        text = f"the replicas differ in the {name} after step {step}: {shown}; no majority shows which are wrong"
        nodes = ()
    return Finding(Severity.WARN, KEY, text, nodes, EVIDENCE, _remedy(step, wrong, nodes))


def _remedy(step: str, wrong: Sequence[int], nodes: Sequence[str]) -> str:
    holder = "rank 0, which is one of them," if 0 in wrong else "rank 0"
    check = "`orch check --level full` tests the nodes"
    if nodes:
        check = f"`orch check --level full --nodes {','.join(nodes)}` tests the node"
    return (
        f"stop the run and continue from a checkpoint before step {step} (whole checkpoints hold the replica of {holder}; sharded ones have a part of each); {check}. "
        "Unequal devices, library versions or numbers of threads also round differently"
    )
