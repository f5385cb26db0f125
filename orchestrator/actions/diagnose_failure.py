"""Diagnose a run when it fails: over connections that are open, within a few seconds, and for its record."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.actions.diagnose import user_signatures
from orchestrator.actions.diagnose_run import diagnosis_of, record_diagnosis
from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.signature import Signature
from orchestrator.errors import UsageError
from orchestrator.launchers.base import Launcher
from orchestrator.run import RunRecord
from orchestrator.store import KeptRun

SEARCH_S, WAIT_S = 3.0, 5.0
"""How long a node searches, and how long all nodes are waited for."""


def diagnose_failure(run: KeptRun, launcher: Launcher, on_warning: Callable[[str], None]) -> RunRecord:
    """
    Diagnose a run that has failed, and return its record with the result.

    An error here becomes a warning: it must not hide the outcome of the run. Ctrl-C is raised.
    """
    try:
        record = run.read()
        if not record.is_undiagnosed:
            return record
        found = diagnosis_of(run, launcher, _signatures(on_warning), search_s=SEARCH_S, wait_s=WAIT_S)
        is_without_logs = found.missing is not None and not found.files
        return record if is_without_logs else record_diagnosis(run, found)
    except Exception as exc:  # noqa: BLE001  see above
        on_warning(f"the failure could not be diagnosed: {exc}")
        return run.read()


def _signatures(on_warning: Callable[[str], None]) -> dict[str, Signature]:
    """The catalogue with the user's signatures; without them if they are wrong."""
    try:
        return CATALOGUE | user_signatures(None)
    except UsageError as exc:
        on_warning(str(exc))
        return CATALOGUE
