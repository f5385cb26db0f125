"""The past of each node: one line per attempt that has ended and per check with findings, in one file."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan
    from orchestrator.portable.findings import Finding
    from orchestrator.run import RunRecord

FILE, OLDER = "nodes.jsonl", "nodes.1.jsonl"
LIMIT_BYTES = 4 << 20  # some 15,000 attempts; a full file becomes the older one, which is then lost
WINDOW_S = 28 * 86400.0
LEAST_FAILURES = 2
CHANCE = 0.05
"""A node is a suspect if its failures are less likely than this by chance, among all nodes."""
_DAMAGED = (ValueError, TypeError, KeyError)
"""The errors of a line that is damaged or of another version."""


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A run that failed on a node, or began to."""

    time: float
    run: str
    kind: FailureClass
    text: str

    @property
    def may_be_the_nodes(self) -> bool:
        """True if the node may be the reason; False for the program, its settings, and the scheduler."""
        return self.kind.retry is not Retry.NEVER and self.kind is not FailureClass.PREEMPTION


@dataclass(slots=True)
class NodeHistory:
    """The last four weeks of one node, which is known by its address."""

    attempts: int = 0
    """The attempts of runs in which the node took part."""
    failures: list[NodeFailure] = field(default_factory=list)
    findings: dict[str, int] = field(default_factory=dict)
    """The number of launches in which a check has found something on the node, by the name of the check."""
    slow_runs: list[str] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    """For each failure of a run of the node, how likely it begins on this node if it begins on any node of the run."""
    chance: float = 1.0
    """How likely it is that on any of the nodes so many failures begin by chance."""

    @property
    def expected(self) -> float:
        """The number of failures on the node by chance."""
        return sum(self.chances)

    @property
    def suspected(self) -> list[NodeFailure]:
        """The failures of which the node may be the reason."""
        return [failure for failure in self.failures if failure.may_be_the_nodes]

    @property
    def is_suspect(self) -> bool:
        """True if more failures began on the node than chance explains."""
        return len(self.suspected) >= LEAST_FAILURES and self.chance < CHANCE

    def to_json(self) -> dict[str, Any]:
        failures = [
            {"time": each.time, "run": each.run, "class": each.kind.value, "text": each.text} for each in self.failures
        ]
        judged = {"expected": self.expected, "chance": self.chance, "suspect": self.is_suspect}
        shown = {"findings": self.findings, "slow_runs": self.slow_runs}
        return {"attempts": self.attempts, "failures": failures, **shown, **judged}


def keep_end(run: object, record: RunRecord, names: Sequence[str] = ()) -> None:
    """
    Keep the end of an attempt with its nodes; nothing for a run on this machine alone, one that never started, or a trial.

    Args:
        run: only a run that is recorded here is kept; it still has the plan of the attempt.
        record: the record with the outcome of the attempt.
        names: the nodes that took part; by default those of the plan.
    """
    if not isinstance(run, RunFolder) or not record.started or record.is_trial:
        return
    with suppress(OSError, OrchError):  # a full disk, a damaged plan: the record of the run has the outcome
        plan = run.read_plan()
        is_unobserved = plan.by_count and not names  # Slurm has chosen the nodes
        if plan.transport == "local" or is_unobserved:
            return
        address = _addresses(plan)
        used = names or [node.name for node in plan.nodes if not plan.by_scheduler or not node.is_spare]
        nodes = fold(address.get(name, name) for name in used)
        slow = {"slow": [address.get(name, name) for name in record.slow_nodes]} if record.slow_nodes else {}
        _append(run.path.parents[1], {**_cause(record, address), "nodes": nodes, **slow})


def keep_cause(run: object, record: RunRecord) -> None:
    """Keep the cause of a failure that was diagnosed after `keep_end`."""
    if isinstance(run, RunFolder) and record.started and record.failure is not None and not record.is_trial:
        with suppress(OSError, OrchError):
            _append(run.path.parents[1], _cause(record, _addresses(run.read_plan())))


def _addresses(plan: LaunchPlan) -> dict[str, str]:
    return {node.name: node.address for node in (*plan.nodes, *plan.spares, *plan.replaced)}


def _cause(record: RunRecord, address: Mapping[str, str]) -> dict[str, Any]:
    """The class of the failure, the nodes on which it began and its cause in one sentence."""
    failure = record.failure
    failed: Sequence[str] = () if failure is None else failure.nodes or ((record.exit.node,) if record.exit else ())
    return {
        "run": record.id,
        "attempt": record.attempt,
        "class": failure.kind.value if failure else None,
        "failed": [address.get(name, name) for name in failed],
        "text": (failure.cause if failure else None) or (record.message or "").partition("\n")[0],
    }


def keep_findings(folder: RunFolder, findings: Sequence[Finding]) -> None:
    """Keep the names of the checks that have found something on nodes before a start."""
    with suppress(OSError, OrchError):
        plan = folder.read_plan()
        if plan.transport == "local" or folder.read().is_trial:
            return
        address = _addresses(plan)
        found = [
            {"check": finding.check, "nodes": fold(address.get(name, name) for name in finding.nodes)}
            for finding in findings
            if finding.nodes
        ]
        if found:
            _append(folder.path.parents[1], {"run": folder.path.name, "findings": found})


def _append(home: Path, entry: Mapping[str, Any]) -> None:
    """Append a line; if the file is full, rename it first: no line is ever rewritten."""
    path = home / FILE
    line = json.dumps({"time": time.time(), **entry}).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, line)
        state = os.fstat(descriptor)
        if state.st_size >= LIMIT_BYTES and path.stat().st_ino == state.st_ino:  # else another process has renamed it
            path.rename(home / OLDER)
    finally:
        os.close(descriptor)


def node_histories(store: Store) -> dict[str, NodeHistory]:
    """The last four weeks of each node, by its address."""
    earliest = time.time() - WINDOW_S
    entries = [entry for entry in _entries(store.path) if entry["time"] >= earliest]
    histories: dict[str, NodeHistory] = defaultdict(NodeHistory)
    for end in _ends(entries):
        with suppress(*_DAMAGED):
            _add_end(histories, end)
    for entry in entries:
        with suppress(*_DAMAGED):
            for finding in entry.get("findings", ()):
                for node in expand(finding["nodes"]):
                    found = histories[node].findings
                    found[finding["check"]] = found.get(finding["check"], 0) + 1
    for history in histories.values():
        history.chance = min(1.0, len(histories) * _tail(history.chances, len(history.suspected)))
    return dict(histories)


def _ends(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """
    One entry per attempt that has ended, with the cause that was found last.

    A cause is that of the run's last end: after a restart that could not be started, its record has the number of the next attempt.
    """
    ends: dict[tuple[str, int], dict[str, Any]] = {}
    last: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if "nodes" in entry and "failed" in entry:
            last[entry["run"]] = ends.setdefault((entry["run"], entry["attempt"]), {})
        if "failed" in entry and entry["run"] in last:
            last[entry["run"]].update(entry)
    return list(ends.values())


def _add_end(histories: Mapping[str, NodeHistory], end: Mapping[str, Any]) -> None:
    failed = list(dict.fromkeys(end["failed"]))
    nodes = list(dict.fromkeys([*expand(end["nodes"]), *failed]))  # a node may have failed before anybody observed it
    for node in nodes:
        histories[node].attempts += 1
    for node in end.get("slow", ()):
        if end["run"] not in histories[node].slow_runs:
            histories[node].slow_runs.append(end["run"])
    if end["class"] is None or not failed:
        return
    kind = FailureClass(end["class"]) if end["class"] in set(FailureClass) else FailureClass.UNKNOWN
    failure = NodeFailure(end["time"], end["run"], kind, end["text"])
    for node in failed:
        histories[node].failures.append(failure)
    for node in nodes if failure.may_be_the_nodes else ():
        histories[node].chances.append(min(1.0, len(failed) / len(nodes)))


def _tail(chances: Sequence[float], least: int) -> float:
    """The probability that at least so many of these independent events happen."""
    counts = [1.0]
    for chance in chances:
        shifted = [0.0, *(value * chance for value in counts)]
        counts = [value * (1 - chance) + more for value, more in zip([*counts, 0.0], shifted, strict=True)]
    return sum(counts[least:])


def _entries(home: Path) -> Iterator[dict[str, Any]]:
    """The lines of both files, oldest first; damaged ones, and those of other versions, are left out."""
    for name in (OLDER, FILE):
        with suppress(FileNotFoundError):
            for line in (home / name).read_text("utf-8", errors="replace").splitlines():
                with suppress(*_DAMAGED):
                    entry = json.loads(line)
                    if isinstance(entry["time"], float) and (
                        {"run", "attempt", "class", "failed", "text"} <= entry.keys() or "findings" in entry
                    ):
                        yield entry
