"""The start of a plan by a launcher, without the rest of a launch: no record and no check."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.code.bundle import Bundle
from orchestrator.launchers.base import Launcher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts, resolve


def push_and_start(
    launcher: Launcher,
    bundle: Bundle,
    plan: LaunchPlan | None = None,
    *,
    defaults: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Start a plan, by default the launcher's, with variables as if they were discovered on the nodes."""
    plan = plan or launcher.plan
    plan = resolve(plan, launcher.connect(plan))
    plan = resolve(plan, launcher.push(plan, bundle))
    launcher.start(resolve(plan, Facts(defaults=defaults)), bundle)
