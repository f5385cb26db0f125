"""
Weigh the evidence of a failed run: by cause, not by time alone. Pure.

A verdict of orch itself wins over a signature that names a cause, that over an exception of the program, and that over a symptom such
as a timeout. Signatures whose cause is present too are consequences, whatever their times are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from orchestrator.diagnosis.evidence import MOST_PER_LOG, Evidence, Hit
from orchestrator.diagnosis.signature import Role, filled, filled_remedy
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.names.hostlist import fold
from orchestrator.node.search import KERNEL_LOG

RECORD = "record of the run"
"""The name of the run's record, which repeats what the logs have."""
MOST_PROOF, MOST_ERRORS = 3, 5
RUN_KILLS, FOREIGN_KILLS = "run-oom-kills", "foreign-oom-kills"
"""Signatures by which a node reports if the kernel has killed processes of the run, or only others."""
CONTINUED_LINES = 64
"""If a training writes progress so many lines after an error, it has survived the error."""
_NUMBERS = re.compile(r"\d+")


class Confidence(str, Enum):
    """How certain a cause is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Folded:
    """Lines of one signature that are not the cause; of exceptions, those with the same text."""

    signature: str
    text: str
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a failure; without a known cause, `cause` is empty and `errors` are the earliest different lines with errors."""

    cause: str = ""
    signature: str | None = None
    kind: FailureClass | None = None
    retry: Retry | None = None
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """The ranks on which it began; empty if the logs do not name them."""
    confidence: Confidence | None = None
    reason: str = ""
    """Why the confidence is what it is."""
    proof: tuple[Hit, ...] = ()
    remedy: tuple[str, ...] = ()
    alternatives: tuple[Folded, ...] = ()
    """Other possible causes."""
    consequences: tuple[Folded, ...] = ()
    observations: tuple[Folded, ...] = ()
    errors: tuple[Hit, ...] = ()

    def to_json(self) -> dict[str, Any]:
        folded = ("alternatives", "consequences", "observations")
        return {
            "cause": self.cause or None,
            "signature": self.signature,
            "kind": self.kind.value if self.kind else None,
            "retry": self.retry.value if self.retry else None,
            "nodes": list(self.nodes),
            "ranks": list(self.ranks),
            "confidence": self.confidence.value if self.confidence else None,
            "reason": self.reason,
            "remedy": list(self.remedy),
            "proof": [_json_hit(hit) for hit in self.proof],
            **{name: [_json_folded(entry) for entry in getattr(self, name)] for name in folded},
            "errors": [_json_hit(hit) for hit in self.errors],
        }


def rank_causes(evidence: Evidence) -> Diagnosis:
    hits = _most_specific(_in_order(evidence.hits))
    # the training has survived an error after which it made progress for long
    ended = [hit for hit in hits if evidence.progress_lines.get(hit.file, 0) <= hit.line + CONTINUED_LINES]
    of_the_run = [hit for hit in ended if not _may_be_of_others(hit, hits)]
    groups = _candidates(of_the_run) or _candidates(ended) or _candidates(hits)
    if not groups:
        return _unknown(hits, evidence)
    reported_rank, reported_node = _first_reported(hits, evidence)
    # causes on the rank that the launcher reports first, then on few ranks, then early ones: the rest follows from them
    chosen = min(
        groups,
        key=lambda group: (not any(hit.rank in reported_rank for hit in group), len({hit.rank for hit in group})),
    )
    alternatives = [hit for group in groups if group is not chosen for hit in group] + _errors_of_one_rank(chosen, hits)
    first = chosen[0]
    culprits = _culprits(chosen, evidence)
    nodes = _nodes(chosen, hits, culprits, evidence)
    ranks = culprits or _ranks(chosen) or _ranks(_results(first, nodes, hits))
    is_end_of_process = first.signature.role is Role.SYMPTOM and set(reported_node) <= set(nodes)
    if not ranks and (not nodes or is_end_of_process):
        ranks, nodes = reported_rank, reported_node or nodes
    elif not nodes and ranks == reported_rank:
        nodes = reported_node
    values = {"node": fold(nodes) or None, "rank": fold(map(str, ranks)) or None, **first.values}
    node = first.values.get("node") or next(iter(nodes), None)  # commands such as orch ssh take one
    cause = filled(first.signature.cause, values)
    if culprits and "culprit" not in first.values:
        cause += f"; rank {fold(map(str, culprits))} is behind or missing"
    confidence, reason = _confidence(
        chosen, alternatives, hits, is_survived=first not in ended, is_located=bool(culprits)
    )
    used = {id(hit) for hit in (*chosen, *alternatives)}
    rest = [hit for hit in hits if id(hit) not in used]
    return Diagnosis(
        cause=cause,
        signature=first.signature.id,
        kind=first.signature.kind,
        retry=first.signature.retry,
        nodes=nodes,
        ranks=ranks,
        confidence=confidence,
        reason=reason,
        proof=_different([hit for hit in chosen if hit.file != RECORD] or chosen)[:MOST_PROOF],
        remedy=tuple(filled_remedy(step, {**values, "node": node}) for step in first.signature.remedy),
        alternatives=_folded(alternatives, evidence),
        consequences=_folded([hit for hit in rest if hit.signature.role not in (Role.NOTE, Role.UNKNOWN)], evidence),
        observations=_folded([hit for hit in rest if hit.signature.role is Role.NOTE], evidence),
    )


def _unknown(hits: Sequence[Hit], evidence: Evidence) -> Diagnosis:
    """No cause: the earliest different lines with errors; consequences only if there is nothing else."""
    errors = [hit for hit in hits if hit.signature.role is Role.UNKNOWN]
    consequences = [hit for hit in hits if hit.signature.role is Role.CONSEQUENCE]
    ranks, nodes = _first_reported(hits, evidence)
    # a launcher that reports which rank failed first names the log in which the cause must be
    report = next((hit for hit in hits if "first_rank" in hit.values), None)
    return Diagnosis(
        nodes=nodes,
        ranks=ranks,
        remedy=tuple(filled_remedy(step, report.values) for step in report.signature.remedy) if report else (),
        errors=_different(errors or consequences)[:MOST_ERRORS],
        consequences=_folded(consequences, evidence),
        observations=_folded([hit for hit in hits if hit.signature.role is Role.NOTE], evidence),
    )


def _in_order(hits: Sequence[Hit]) -> list[Hit]:
    """The hits by time if all have one, else as they were read; of several nodes, without ranks that count within a node."""
    if len({hit.node for hit in hits} - {None}) > 1:
        hits = [replace(hit, origin=replace(hit.origin, rank=None)) if hit.origin.is_local else hit for hit in hits]
    is_timed = all(hit.origin.time is not None for hit in hits)
    return sorted(hits, key=lambda hit: hit.origin.time or 0.0) if is_timed else list(hits)


def _most_specific(hits: Sequence[Hit]) -> list[Hit]:
    """Leave out the general signatures of a line in which a more specific one was found."""
    generality = {Role.ERROR: 1, Role.UNKNOWN: 2}
    best: dict[tuple[str, int], int] = {}
    for hit in hits:
        location = hit.file, hit.line
        best[location] = min(best.get(location, 2), generality.get(hit.signature.role, 0))
    return [hit for hit in hits if generality.get(hit.signature.role, 0) == best[hit.file, hit.line]]


def _candidates(hits: Sequence[Hit]) -> list[list[Hit]]:
    """The hits that can be the cause, of the most certain role that there is, grouped by cause."""
    present = {hit.signature.id for hit in hits}
    possible = [hit for hit in hits if not hit.signature.explains or not present.isdisjoint(hit.signature.explains)]
    causes = {hit.signature.id for hit in possible}
    independent = [hit for hit in possible if causes.isdisjoint(hit.signature.follows)]
    for role in (Role.VERDICT, Role.ROOT, Role.ERROR, Role.SYMPTOM):
        groups: dict[tuple[str, str], list[Hit]] = {}
        for hit in independent:
            if hit.signature.role is role:
                groups.setdefault((hit.signature.id, _error_text(hit)), []).append(hit)
        if groups:
            return list(groups.values())
    return []


def _error_text(hit: Hit) -> str:
    """The text of an exception without its numbers; empty for other signatures."""
    return _NUMBERS.sub("", hit.values.get("error", "")) if hit.signature.role is Role.ERROR else ""


def _errors_of_one_rank(chosen: Sequence[Hit], hits: Sequence[Hit]) -> list[Hit]:
    """The exceptions of a single one of the several ranks of the cause, which may have ended it: the others had the cause as well."""
    ranks = _ranks(chosen)
    if len(ranks) == 1 or chosen[0].signature.role is not Role.ROOT:
        return []
    errors = [hit for hit in hits if hit.signature.role is Role.ERROR]
    ranks_of: dict[str, set[int | None]] = {}
    for hit in errors:
        ranks_of.setdefault(_error_text(hit), set()).add(hit.rank)
    return [hit for hit in errors if hit.rank in ranks and len(ranks_of[_error_text(hit)]) == 1]


def _first_reported(hits: Sequence[Hit], evidence: Evidence) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Rank and node that failed first by the run's record, or by the report of a launcher."""
    rank, node = evidence.first_failure or (None, None)
    if rank is None:
        reports = (hit for hit in hits if "first_rank" in hit.values and node in {None, hit.node})
        values = next((hit.values for hit in reports), None)
        rank, node = (None, node) if values is None else (int(values["first_rank"]), node or values.get("first_node"))
    return () if rank is None else (rank,), () if node is None else (node,)


def _culprits(group: Sequence[Hit], evidence: Evidence) -> tuple[int, ...]:
    """The ranks that the texts name as the cause, or that are behind: with a lower number of operations, or without a timeout or any error."""
    named = {int(rank) for hit in group for rank in _NUMBERS.findall(hit.values.get("culprit", ""))}
    reached = {hit.rank: int(hit.values["seq"]) for hit in group if hit.rank is not None and "seq" in hit.values}
    if named or not reached:
        return tuple(sorted(named)) or _silent(group, evidence)
    behind = [rank for rank, number in reached.items() if number < max(reached.values())]
    missing = _ranks_of_the_run(evidence, set(reached)) - set(reached)
    if evidence.is_partial or len(missing) > len(reached):  # not found, or of another process group
        missing = set()
    return tuple(sorted(missing or behind))


def _ranks_of_the_run(evidence: Evidence, named: set[int]) -> set[int]:
    """All ranks; if their number is not known, those up to the highest one of several that are named."""
    return set(range(evidence.world_size or (max(named) + 1 if len(named) > 1 else 0)))


def _silent(group: Sequence[Hit], evidence: Evidence) -> tuple[int, ...]:
    """The only rank in whose log nothing was found, if other ranks timed out; empty if there are several."""
    if group[0].signature.kind is not FailureClass.HANG or evidence.is_partial:
        return ()
    named = {hit.origin.rank for hit in evidence.hits if hit.origin.rank is not None}
    silent = _ranks_of_the_run(evidence, named) - named
    return tuple(silent) if len(silent) == 1 else ()


def _nodes(
    chosen: Sequence[Hit], hits: Sequence[Hit], culprits: tuple[int, ...], evidence: Evidence
) -> tuple[str, ...]:
    """The nodes of the cause; of culprits, the nodes of their logs, or those whose logs have lines of these ranks."""
    if culprits:
        named = [hit.origin.node for hit in hits if hit.origin.rank in culprits and hit.origin.node]
        named += [evidence.node_of[rank] for rank in culprits if rank in evidence.node_of]
    else:
        named = [hit.node for hit in chosen if hit.node]
    return tuple(dict.fromkeys(named))


def _ranks(hits: Iterable[Hit]) -> tuple[int, ...]:
    return tuple(sorted({hit.rank for hit in hits if hit.rank is not None}))


def _results(cause: Hit, nodes: tuple[str, ...], hits: Iterable[Hit]) -> list[Hit]:
    """The direct consequences of the cause on its node, such as the death of the rank that the OOM killer chose."""
    return [
        hit
        for hit in hits
        if cause.signature.id in hit.signature.follows and hit.node in nodes and not hit.file.endswith(f"/{KERNEL_LOG}")
    ]


def _confidence(  # noqa: C901, PLR0911  one line per rule
    chosen: Sequence[Hit], alternatives: Sequence[Hit], hits: Sequence[Hit], *, is_survived: bool, is_located: bool
) -> tuple[Confidence, str]:
    """How certain the cause is, and why."""
    role, ranks = chosen[0].signature.role, {hit.rank for hit in chosen}
    earlier = hits[: hits.index(chosen[0])]
    if role is Role.VERDICT:
        return Confidence.HIGH, "orch has found that out itself"
    if is_survived:
        return Confidence.LOW, "the training continued for many lines after it"
    if all(_may_be_of_others(hit, hits) for hit in chosen):
        return Confidence.LOW, "only the kernel's log has it, so the process may be another job's"
    if role is Role.SYMPTOM and is_located:
        return Confidence.MEDIUM, "it names the rank, and nothing shows why that rank is behind"
    if role is Role.SYMPTOM and chosen[0].signature.kind is FailureClass.HANG:
        return Confidence.LOW, "the ranks that it names waited for another one, which nothing names"
    if role is Role.SYMPTOM:
        return Confidence.LOW, "it shows how the run failed, and nothing that was found shows why"
    if alternatives:
        return Confidence.MEDIUM if role is Role.ROOT else Confidence.LOW, "other lines name other causes"
    if role is Role.ERROR:
        return Confidence.MEDIUM, "it is the program's own error, the only one that follows from no other"
    if any(hit.signature.role is Role.ERROR and hit.rank not in ranks for hit in earlier):
        return Confidence.MEDIUM, "another rank had raised an error before"
    if any(hit.signature.role is Role.ERROR and _is_beside(hit, chosen) for hit in hits):
        return Confidence.MEDIUM, "the program raised another error on the same rank or in the same log"
    return Confidence.HIGH, "the text names the cause, and all other errors follow from it"


def _may_be_of_others(hit: Hit, hits: Sequence[Hit]) -> bool:
    """True if the kernel killed a process of the node for lack of memory, and nothing shows that it was one of the run."""
    if hit.signature.kind is not FailureClass.MEMORY or not hit.file.endswith(f"/{KERNEL_LOG}"):
        return False
    counted = {line.signature.id for line in hits if line.file == hit.file}
    if RUN_KILLS in counted:
        return False
    return FOREIGN_KILLS in counted or not _results(hit, (hit.node,) if hit.node else (), hits)


def _is_beside(hit: Hit, chosen: Sequence[Hit]) -> bool:
    """True if the hit is of a rank of the cause, or in its log if one of the two ranks is unknown; of the kernel's log, on its node."""

    def is_same(cause: Hit) -> bool:
        if cause.file.endswith(f"/{KERNEL_LOG}"):
            return hit.node == cause.node
        return hit.file == cause.file if hit.rank is None or cause.rank is None else hit.rank == cause.rank

    return any(map(is_same, chosen))


def _different(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """The first hit of each text, apart from numbers."""
    return tuple({_NUMBERS.sub("", hit.origin.text): hit for hit in reversed(list(hits))}.values())[::-1]


def _folded(hits: Sequence[Hit], evidence: Evidence) -> tuple[Folded, ...]:
    groups: dict[tuple[str, str], list[Hit]] = {}
    for hit in hits:
        key = hit.signature.id, _error_text(hit)
        if key not in groups and sum(name == key[0] for name, _ in groups) >= MOST_ERRORS:
            key = hit.signature.id, ""
        groups.setdefault(key, []).append(hit)
    return tuple(
        Folded(
            name,
            filled(group[0].signature.cause, group[0].values),
            len(group) if len(group) < MOST_PER_LOG else evidence.counts.get(name, len(group)),
            _ranks(group),
        )
        for (name, _), group in groups.items()
    )


def _json_hit(hit: Hit) -> dict[str, Any]:
    return {"file": hit.file, "line": hit.line, "node": hit.node, "rank": hit.rank, "text": hit.origin.text}


def _json_folded(entry: Folded) -> dict[str, Any]:
    return {"signature": entry.signature, "text": entry.text, "lines": entry.count, "ranks": list(entry.ranks)}
