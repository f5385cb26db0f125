"""The context of a failure that is in no log: the findings of the checks, and the changes since the last run that was done."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress

from orchestrator.errors import RunNotFound
from orchestrator.findings import Finding, Severity
from orchestrator.records.runs import all_runs
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.reports.diff import Difference, RecordedRun, diff

MOST_COMPARED = 20
"""Earlier runs whose records are read, newest first."""


def findings_of(folder: RunFolder, nodes: Collection[str]) -> tuple[str, ...]:
    """The failures and warnings of the check before the start about these nodes, or about none in particular."""
    try:
        listed = json.loads((folder.path / "findings.json").read_text("utf-8"))
        findings = [
            Finding(**{**entry, "severity": Severity(entry["severity"]), "nodes": tuple(entry["nodes"])})
            for entry in listed
        ]
    except (OSError, ValueError, TypeError, KeyError):  # not checked, or written by another version
        return ()
    serious = (finding for finding in findings if finding.severity is not Severity.INFO)
    return tuple(
        f"{finding.check}: {finding.fault}"
        for finding in serious
        if not nodes or not finding.nodes or not set(nodes).isdisjoint(finding.nodes)
    )


def changes_since_success(folder: RunFolder) -> tuple[str, list[Difference]]:
    """The last run before this one that was done with the same inventory, and the differences; an empty id without one."""
    failed = RecordedRun.of(folder)
    for earlier in _done_before(failed.record):
        with suppress(RunNotFound):
            done = RecordedRun.of(earlier)
            if _is_alike(done.record, failed.record) and not done.record.is_trial:
                return done.record.id, [change for change in diff(done, failed) if change.topic != "results"]
    return "", []


def _done_before(record: RunRecord) -> Iterator[RunFolder]:
    runs, _ = all_runs()
    done = [folder for folder, entry in runs if entry.state is RunState.DONE and entry.created < record.created]
    yield from done[: -MOST_COMPARED - 1 : -1]


def _is_alike(first: RunRecord, second: RunRecord) -> bool:
    """True if both have the same inventory and the same kind of program."""
    kinds = [
        (record.inventory.get("file"), record.request.get("program", {}).get("kind")) for record in (first, second)
    ]
    return kinds[0] == kinds[1]
