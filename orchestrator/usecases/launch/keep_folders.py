"""The folders that runs keep (`keep:` in the inventory): no two runs write to them at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import RunNotFound, UsageError
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import all_runs


def require_unused(plan: LaunchPlan, after: Sequence[str]) -> None:
    """
    Refuse a launch if a run that has not ended by its record keeps the same folders.

    Args:
        after: the runs that this one waits for, as typed after --after; they may.

    Raises:
        UsageError: there is one.
    """
    earlier = {word.rpartition(":")[2] for word in after}
    for folder, entry in all_runs()[0]:
        name = entry.id.rsplit("-", 3)[0]
        if entry.state.final or earlier & {entry.id, name, "latest"} or any(map(entry.id.startswith, earlier)):
            continue
        if shared := sorted(set(plan.keep) & set(_kept_by(folder, plan))):
            raise UsageError(
                f"{entry.id} has not ended and writes to {shared[0]}, which this run would share: {plan.kept_dir(plan.head)}/{shared[0]}",
                hint=f"orch stop {entry.id}, or give this run another --name, which has other folders; if that run has ended, orch status {entry.id} records it",
            )


def _kept_by(folder: RunFolder, plan: LaunchPlan) -> Sequence[str]:
    """The folders that the run keeps at the same place as the plan."""
    try:
        kept = folder.read_plan()
    except RunNotFound:
        return ()
    return kept.keep if kept.keep and kept.kept_dir(kept.head) == plan.kept_dir(plan.head) else ()
