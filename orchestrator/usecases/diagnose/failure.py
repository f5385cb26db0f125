"""Diagnose a run when it fails: over connections that are open, within a few seconds, and for its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.signature import Signature
from orchestrator.errors import RunNotFound, UsageError
from orchestrator.launchers.base import Launcher
from orchestrator.records.run_folder import KeptRun
from orchestrator.run import RunRecord
from orchestrator.usecases.diagnose.log_files import user_signatures
from orchestrator.usecases.diagnose.run import diagnosis_of, record_diagnosis
from orchestrator.verdict.classify import diagnosed

SEARCH_S, WAIT_S = 3.0, 5.0
"""How long a node searches, and how long all nodes are waited for."""


def diagnose_failure(run: KeptRun, launcher: Launcher, on_warning: Callable[[str], None]) -> RunRecord | None:
    """
    Diagnose a run that has failed, and return its record with the result; None if the record cannot be read.

    An error here becomes a warning: it must not hide the outcome of the run. Ctrl-C is raised.
    """
    try:
        record = run.read()
    except RunNotFound:
        return None
    if not record.is_undiagnosed:
        return record
    try:
        found = diagnosis_of(run, launcher, _signatures(on_warning), search_s=SEARCH_S, wait_s=WAIT_S)
        if found.missing is not None and not found.files:
            return record
        try:
            return record_diagnosis(run, found)
        except OSError:  # a full disk: the result is shown all the same
            assert record.failure is not None, "see is_undiagnosed"
            return replace(record, failure=diagnosed(record.failure, found.diagnosis, record.exit))
    except Exception as exc:  # noqa: BLE001  see above
        on_warning(f"the failure could not be diagnosed: {exc}")
        return record


def _signatures(on_warning: Callable[[str], None]) -> dict[str, Signature]:
    """The catalogue with the user's signatures; without them if they are wrong."""
    try:
        return CATALOGUE | user_signatures(None)
    except UsageError as exc:
        on_warning(str(exc))
        return CATALOGUE
