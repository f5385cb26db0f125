"""
Weigh the evidence of a failed run: by cause, not by time alone. Pure.

A verdict of orch itself wins over a signature that names a cause, that over an exception of the program, and that over a symptom such
as a timeout. Signatures whose cause is present too are consequences, whatever their times are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from orchestrator.diagnosis.advice import advice, is_repeated, package_of
from orchestrator.diagnosis.collectives import MOST_IN_FLIGHT, behind, calls_of, different_calls, is_entered_by_all
from orchestrator.diagnosis.evidence import MOST_PER_LOG, Evidence, Hit
from orchestrator.diagnosis.signature import MORE_DEBUG, Role, Signature, filled, filled_remedy
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.node.search import KERNEL_LOG
from orchestrator.portable.names.hostlist import fold

RECORD = "record of the run"
"""The name of the run's record, which repeats what the logs have."""
MOST_PROOF, MOST_ERRORS = 3, 5
RUN_KILLS, FOREIGN_KILLS = "run-oom-kills", "foreign-oom-kills"
"""Signatures by which a node reports if the kernel has killed processes of the run, or only others."""
CONTINUED_LINES = 64
"""If a training writes progress so many lines after an error, it has survived the error."""
NEAR_LINES, IGNORED_LINES = 12, 40
"""Within these lines after an error is its own advice; within these after `Exception ignored in` is the exception."""
_NUMBERS = re.compile(r"\d+")
_ADVICE, _IGNORED, _BUSY, _STARTS, _NCCL_WARN = (
    "own-advice",
    "exception-ignored",
    "rank-busy",
    "rank-started-twice",
    "nccl-warning",
)
_CAUSES = frozenset({Role.VERDICT, Role.ROOT, Role.SYMPTOM})
_GENERAL = frozenset(
    {
        "command-not-found",
        "not-executable",
        "file-not-found",
        "permission-denied",
        "program-not-found",
        "disk-full",
        "dtypes-differ",
        "too-many-files",
        "too-many-processes",
        "card-gone",
        "driver-too-old",
        "slurm-error",
        "slurm-refused",
        "container-not-created",
        "apptainer-failed",
    }
)
"""Causes that are certain, and say less than another signature of their line."""
_WORDS, _LEAST_SPECIFIC = "failure-text", 3
"""The signature of words that may report an error: shown if nothing else is."""
_OPTIONAL = re.compile(
    r"No module named|cannot import|ImportError|cannot open shared object|undefined symbol|not installed|[Ff]ailed to import"
)
"""Texts that a program also logs where it can do without the module."""
_FAILS = frozenset({Role.ROOT, Role.ERROR})


_DIFFERENT_CALLS = (
    "give every rank the same number of batches: DistributedSampler(…, drop_last=True), an even split of the files, or `with model.join():`",
    "take the same branches on all ranks: a validation, a save or a `continue` on some ranks alone calls other operations",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL: the next attempt names the calls with their shapes",
)
_ENTERED_BY_ALL = "all ranks that report it entered the same collective operation, and it did not end: the connection between cards or nodes stopped, or a rank is missing that left no line"
_ENTERED_BY_ALL_REMEDY = (
    "NCCL_P2P_DISABLE=1: if the run then passes, the cards cannot reach each other over PCIe (IOMMU or ACS is on); between nodes orch bench comm --pairs names the link",
    "NCCL_DEBUG=INFO: a line with `NCCL WARN` before the timeout names the transport that failed",
    "orch diagnose during the hang, or the flight records of the ranks (TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1), show where each rank is",
)


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
    hits = _with_ignored(
        _without_single_starts(_without_finished_work(_most_specific(_in_order(evidence.hits)), evidence))
    )
    ended = [hit for hit in hits if not _is_survived(hit, hits, evidence)]
    of_the_run = [hit for hit in ended if not _may_be_of_others(hit, hits)]
    # a setting that was wrong, or a module that was missing, has not ended a training that continued
    survived = [hit for hit in hits if hit.signature.kind is not FailureClass.CONFIG]
    groups = _candidates(of_the_run) or _candidates(ended) or _candidates(survived)
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
    row = _variant(chosen, evidence)
    culprits = _culprits(chosen, evidence)
    nodes = _nodes(chosen, hits, culprits, evidence)
    ranks = culprits or _ranks(chosen) or _ranks(_results(first, nodes, hits))
    is_end_of_process = row.role is Role.SYMPTOM and set(reported_node) <= set(nodes)
    if not ranks and (not nodes or is_end_of_process):
        ranks, nodes = reported_rank, reported_node or nodes
    elif not nodes and ranks == reported_rank:
        nodes = reported_node
    values = {"node": fold(nodes) or None, "rank": fold(map(str, ranks)) or None, **first.values}
    values.setdefault("package", package_of(values.get("module") or ""))
    cause = filled(row.cause, values)
    if culprits and "culprit" not in first.values:
        cause += f"; rank {fold(map(str, culprits))} is behind or missing"
    confidence, reason = _confidence(
        chosen, alternatives, hits, is_survived=first not in ended, is_located=bool(culprits)
    )
    used = {id(hit) for hit in (*chosen, *alternatives)}
    rest = [hit for hit in hits if id(hit) not in used]
    node = first.values.get("node") or next(iter(nodes), None)  # commands such as orch ssh take one
    return Diagnosis(
        cause=cause,
        signature=first.signature.id,
        kind=row.kind,
        retry=None if row.role is Role.ERROR and not is_repeated(first.values.get("error", "")) else row.retry,
        nodes=nodes,
        ranks=ranks,
        confidence=confidence,
        reason=reason,
        proof=_proof(chosen, hits),
        remedy=_remedy(row, first, {**values, "node": node}, hits),
        alternatives=_folded(alternatives, evidence),
        consequences=_folded([hit for hit in rest if hit.signature.role not in (Role.NOTE, Role.UNKNOWN)], evidence),
        observations=_folded(
            [hit for hit in rest if hit.signature.role is Role.NOTE and hit.signature.id not in (_ADVICE, _IGNORED)],
            evidence,
        ),
    )


def _is_survived(hit: Hit, hits: Sequence[Hit], evidence: Evidence) -> bool:
    """True if the training made progress for long after an error, or until another error of the same process."""
    progress = evidence.progress_lines.get(hit.file, 0)
    if progress > hit.line + CONTINUED_LINES:
        return True
    return hit.line < progress and any(
        later.line >= progress
        and later.file == hit.file
        and later.rank == hit.rank
        and later.signature.role in _FAILS
        and not later.is_mild
        for later in hits
    )


def _without_finished_work(hits: Sequence[Hit], evidence: Evidence) -> list[Hit]:
    """Leave out the states of work such as tokenizing, but the last one if that shows work which is not finished."""
    last = {hit.file: hit for hit in hits if hit.signature.id == _BUSY}
    return [
        hit
        for hit in hits
        if hit.signature.id != _BUSY
        or (
            hit is last[hit.file]
            and hit.values.get("percent") != "100"
            and evidence.progress_lines.get(hit.file, 0) <= hit.line
        )
    ]


def _without_single_starts(hits: Sequence[Hit]) -> list[Hit]:
    """Leave out the starts of ranks unless a rank was started twice, and another one never."""
    starts = [hit for hit in hits if hit.signature.id == _STARTS]
    ranks = [hit.values["rank"] for hit in starts]
    is_wrong = len(set(ranks)) < len(ranks) <= int(starts[0].values["members"]) if starts else False
    return list(hits) if is_wrong else [hit for hit in hits if hit.signature.id != _STARTS]


def _with_ignored(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, of which the first error after each `Exception ignored in` is one that the process has survived."""
    ignored = set()
    for note in hits:
        if note.signature.id == _IGNORED:
            after = (hit for hit in hits if hit.file == note.file and note.line < hit.line <= note.line + IGNORED_LINES)
            ignored.add(
                id(next((hit for hit in after if hit.signature.role in _FAILS and hit.rank == note.rank), None))
            )
    return [replace(hit, is_mild=True) if id(hit) in ignored else hit for hit in hits]


def _variant(chosen: Sequence[Hit], evidence: Evidence) -> Signature:
    """The signature of the cause; for timeouts of a collective with what the ranks' calls say together."""
    row = chosen[0].signature
    calls = calls_of(chosen)
    called = different_calls(calls)
    if called:
        cause = f"the ranks called different operations at the same place, or with different sizes: {called}"
        return replace(row, cause=cause, remedy=_DIFFERENT_CALLS, kind=FailureClass.CODE)
    if is_entered_by_all(calls, evidence.world_size):
        return replace(row, cause=_ENTERED_BY_ALL, remedy=_ENTERED_BY_ALL_REMEDY)
    return row


def _proof(chosen: Sequence[Hit], hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """The different lines of the cause, and for an error of NCCL without its reason the warnings of NCCL."""
    lines = _different([hit for hit in chosen if hit.file != RECORD] or chosen)[:MOST_PROOF]
    if not any(MORE_DEBUG in hit.signature.remedy for hit in chosen):
        return lines
    warnings = _different(hit for hit in hits if hit.signature.id == _NCCL_WARN)
    return (*lines[: MOST_PROOF - 1], *warnings)[:MOST_PROOF] if warnings else lines


def _remedy(row: Signature, first: Hit, values: Mapping[str, str | None], hits: Sequence[Hit]) -> tuple[str, ...]:
    """The next steps with their values; those that the log itself gives come first."""
    advised = [
        hit.values["advice"]
        for hit in hits
        if hit.signature.id == _ADVICE and hit.file == first.file and abs(hit.line - first.line) <= NEAR_LINES
    ]
    has_warning = any("NCCL WARN" in hit.origin.text for hit in hits)
    steps = [step for step in row.remedy if step != MORE_DEBUG or not has_warning]
    texts = [*filter(None, (filled_remedy(step, values) for step in steps))]
    if row.role is Role.ERROR:
        texts = [*advice(first.values.get("error", ""), first.frame, first.code, first.caller)]
    return tuple(dict.fromkeys([*(f"the log itself advises: {text}" for text in advised[:1]), *texts]))


def _unknown(hits: Sequence[Hit], evidence: Evidence) -> Diagnosis:
    """No cause: the earliest different lines with errors; consequences only if there is nothing else."""
    survived = {id(hit) for hit in hits if _is_survived(hit, hits, evidence)}
    errors = [
        hit
        for hit in hits
        if hit.signature.role is Role.UNKNOWN or (hit.signature.role in _FAILS and (hit.is_mild or id(hit) in survived))
    ]
    consequences = [hit for hit in hits if hit.signature.role is Role.CONSEQUENCE]
    ranks, nodes = _first_reported(hits, evidence)
    # a launcher that reports which rank failed first names the log in which the cause must be
    report = next((hit for hit in hits if "first_rank" in hit.values), None)
    return Diagnosis(
        nodes=nodes,
        ranks=ranks,
        remedy=tuple(filter(None, (filled_remedy(step, report.values) for step in report.signature.remedy)))
        if report
        else (),
        errors=_different(_without_words(errors) or consequences or errors)[:MOST_ERRORS],
        consequences=_folded(consequences, evidence),
        observations=_folded([hit for hit in hits if hit.signature.role is Role.NOTE], evidence),
    )


def _without_words(errors: Sequence[Hit]) -> list[Hit]:
    """The lines that report an error themselves, without those that a traceback begins with, and those that only have such words."""
    return [hit for hit in errors if hit.signature.id not in (_WORDS, "traceback")]


def _in_order(hits: Sequence[Hit]) -> list[Hit]:
    """The hits by time if all have one, else as they were read; of several nodes, without ranks that count within a node."""
    if len({hit.node for hit in hits} - {None}) > 1:
        hits = [replace(hit, origin=replace(hit.origin, rank=None)) if hit.origin.is_local else hit for hit in hits]
    is_timed = all(hit.origin.time is not None for hit in hits)
    return sorted(hits, key=lambda hit: hit.origin.time or 0.0) if is_timed else list(hits)


def _most_specific(hits: Sequence[Hit]) -> list[Hit]:
    """Leave out the general signatures of a line in which a more specific one was found."""
    best: dict[tuple[str, int], int] = {}
    causes: dict[tuple[str, int], list[Signature]] = {}
    for hit in hits:
        location = hit.file, hit.line
        best[location] = min(best.get(location, _LEAST_SPECIFIC), _generality(hit.signature))
        if hit.signature.role in _CAUSES and not _is_general(hit.signature):
            causes.setdefault(location, []).append(hit.signature)
    return [
        hit
        for hit in hits
        if _generality(hit.signature) == best[hit.file, hit.line]
        and not (
            _is_general(hit.signature)
            and any(hit.signature.id not in row.follows for row in causes.get((hit.file, hit.line), ()))
        )
    ]


def _generality(row: Signature) -> int:
    """The lower, the more a signature says about its line."""
    generality = {Role.ERROR: 1, Role.UNKNOWN: _LEAST_SPECIFIC if row.id == _WORDS else _LEAST_SPECIFIC - 1}
    return generality.get(row.role, 0)


def _is_general(row: Signature) -> bool:
    return row.is_general or row.id in _GENERAL


def _candidates(hits: Sequence[Hit]) -> list[list[Hit]]:
    """The hits that can be the cause, of the most certain role that there is, grouped by cause."""
    present = {hit.signature.id for hit in hits}
    possible = [hit for hit in hits if not hit.signature.explains or not present.isdisjoint(hit.signature.explains)]
    causes = {hit.signature.id for hit in possible if not _is_optional(hit)}
    explained_ids = {name for hit in possible for name in hit.signature.explains}
    independent = [
        hit
        for hit in possible
        if causes.isdisjoint(hit.signature.follows)
        and not (hit.signature.role is Role.SYMPTOM and hit.signature.id in explained_ids)
    ]
    serious = [hit for hit in independent if not hit.is_mild or hit.signature.role not in _FAILS]
    for role in (Role.VERDICT, Role.ROOT, Role.ERROR, Role.SYMPTOM):
        groups = _groups(hit for hit in serious if hit.signature.role is role)
        if groups:
            return groups
    warned = [hit for hit in independent if hit.is_mild and hit.signature.role is Role.ROOT and not _is_optional(hit)]
    # a consequence that names the peer is the way to the cause
    return _groups(warned) or _groups(
        hit for hit in independent if hit.signature.role is Role.CONSEQUENCE and "peer" in hit.values
    )


def _is_optional(hit: Hit) -> bool:
    return hit.is_mild and _OPTIONAL.search(hit.origin.text) is not None


def _groups(hits: Iterable[Hit]) -> list[list[Hit]]:
    groups: dict[tuple[str, str], list[Hit]] = {}
    for hit in hits:
        groups.setdefault((hit.signature.id, _error_text(hit)), []).append(hit)
    return list(groups.values())


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
    calls = calls_of(group)
    if named or not calls:
        return tuple(sorted(named)) or _silent(group, evidence)
    ranks, gap = behind(calls)
    missing = _ranks_of_the_run(evidence, set(calls)) - set(calls)
    is_far = evidence.world_size is None and gap > MOST_IN_FLIGHT
    if evidence.is_partial or is_far or len(missing) > len(calls):  # not found, or of another process group
        missing = set()
    return () if different_calls(calls) else tuple(sorted(missing)) or ranks


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


def _confidence(  # noqa: C901, PLR0911, PLR0912  one line per rule
    chosen: Sequence[Hit], alternatives: Sequence[Hit], hits: Sequence[Hit], *, is_survived: bool, is_located: bool
) -> tuple[Confidence, str]:
    """How certain the cause is, and why."""
    role, ranks = chosen[0].signature.role, {hit.rank for hit in chosen}
    earlier = hits[: hits.index(chosen[0])]
    if role is Role.VERDICT:
        return Confidence.HIGH, "orch has found that out itself"
    if is_survived:
        return Confidence.LOW, "the training continued after it"
    if chosen[0].is_mild and role in _FAILS:
        return Confidence.LOW, "the program logged it as a warning, or reports that it continued"
    if role is Role.CONSEQUENCE:
        return Confidence.LOW, "it only follows from the failure, whose reason must be in the log of the other side"
    if all(_may_be_of_others(hit, hits) for hit in chosen):
        return Confidence.LOW, "only the kernel's log has it, so the process may be another job's"
    if different_calls(calls_of(chosen)):
        return Confidence.MEDIUM, "the operations or their sizes differ, and nothing shows which rank is right"
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
    if chosen[0].signature.is_general:
        return Confidence.MEDIUM, "several causes have this text, of which this is the most frequent"
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
