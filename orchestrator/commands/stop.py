"""`orch stop`: end a run on every node."""

from __future__ import annotations

from orchestrator.actions import stop as action
from orchestrator.actions.runs import find_run
from orchestrator.console import inform


def stop(run: str) -> int:
    """Stop the run and print its state."""
    record = action.stop(find_run(run), inform)
    inform(f"run {record.id} is {record.state.value}")
    return 0
