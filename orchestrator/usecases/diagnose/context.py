"""The context of a failure that is in no log: findings of the checks, changes since the last run that was done, the code that was sent."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from orchestrator.diagnosis.rank_causes import Diagnosis
from orchestrator.errors import RunNotFound
from orchestrator.portable.findings import Finding, Severity
from orchestrator.records.run_folder import KeptRun, RunFolder
from orchestrator.records.runs import all_runs
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
    about = (each for each in serious if not nodes or not each.nodes or not set(nodes).isdisjoint(each.nodes))
    return tuple(f"{finding.check}: {finding.fault}" for finding in about)


def changes_since_success(folder: RunFolder) -> tuple[str, list[Difference]]:
    """The last run before this one that was done with the same inventory, and the differences; an empty id without one."""
    failed = RecordedRun.of(folder)
    earlier_runs = [run for run in all_runs()[0] if run[1].created < failed.record.created]
    done_runs = [folder for folder, entry in earlier_runs if entry.state is RunState.DONE]
    for earlier in done_runs[: -MOST_COMPARED - 1 : -1]:
        with suppress(RunNotFound):
            done = RecordedRun.of(earlier)
            if _launch(done.record) == _launch(failed.record) and not done.record.is_trial:
                return done.record.id, [change for change in diff(done, failed) if change.topic != "results"]
    return "", []


def _launch(record: RunRecord) -> tuple[object, object]:
    """The inventory and the kind of program, in which runs are alike."""
    return record.inventory.get("file"), record.request.get("program", {}).get("kind")


def with_module_path(found: Diagnosis, run: KeptRun) -> Diagnosis:
    """Advise PYTHONPATH instead of an installation if the missing module is in a folder of the code, as with a src layout."""
    if found.signature != "module-not-found" or not found.proof or not isinstance(run, RunFolder):
        return found
    module = found.proof[0].values.get("module", "").strip("'\";,")
    cwd = run.read_plan().program.cwd or ""
    folder = module_folder(module, cwd, run.read_code() or {})
    if folder is None:
        return found
    path = posixpath.relpath(f"/{folder}", f"/{cwd}")
    name = module.partition(".")[0]
    step = f"env: {{PYTHONPATH: {path}}} in the inventory: the code that was sent has {name} in {path}, where Python does not look"
    return replace(found, remedy=(step,))


def module_folder(module: str, cwd: str, files: Collection[str]) -> str | None:
    """The shortest folder of the code, other than the working folder, from which Python can import the module; None without one."""
    name = module.partition(".")[0]
    if not name:
        return None
    folders = set()
    for file in files:
        *parents, last = file.split("/")
        if last == f"{name}.py":
            folders.add("/".join(parents))
        elif last.endswith(".py") and name in parents:
            folders.add("/".join(parents[: parents.index(name)]))
    return None if cwd in folders else min(folders, key=lambda folder: (folder.count("/"), folder), default=None)
