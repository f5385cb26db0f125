"""The plan as a launch would carry it out now: nodes or scheduler are queried, and nothing is written or started there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from orchestrator.launch.held_cards import require_free
from orchestrator.launch.planned import Planned
from orchestrator.launch.start import connect, resolved
from orchestrator.launchers import launcher_for
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress


def queried_plan(planned: Planned, on_warning: Callable[[str], None], on_progress: OnProgress) -> LaunchPlan:
    """
    Connect as the launch does, and check the nodes; return the resolved plan.

    Raises:
        OrchError: the launch would be refused, or would fail, for this reason.
    """
    with closing(launcher_for(planned.plan, planned.terminal, on_progress, planned.connected)) as launcher:
        reached = connect(planned, launcher, on_warning)
        if isinstance(launcher, DirectLauncher):
            require_free(replace(reached, wait_free_s=None), launcher, on_warning, is_stopped=bool)
        if not isinstance(launcher, DirectLauncher) or not reached.checked:
            return reached.plan
        from orchestrator.launch.node_check import begin_check, facts_of, require_passed  # only launches over SSH check

        result = begin_check(reached, launcher).result()
        require_passed(result.findings, planned.record.inventory["file"], on_warning)
        return resolved(reached.plan, facts_of(result, reached), on_warning)
