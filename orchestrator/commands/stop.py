"""`orch stop`: end a run on every node."""

from __future__ import annotations

import os

from orchestrator.actions import stop as action
from orchestrator.console import inform
from orchestrator.store import Store, home


def stop(run: str) -> int:
    """Stop the run and print its state."""
    record = action.stop(Store(home(os.environ)).find(run), inform)
    inform(f"run {record.id} is {record.state.value}")
    return 0
