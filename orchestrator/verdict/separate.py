"""The verdict on ranks that train separately, although one training was launched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.ranks.one_training import LEAST_STEPS, joining_remedy, separate_trainings
from orchestrator.plan.plan import LaunchPlan

EVERY_S = 5.0  # between two looks at the progress of all ranks


def separate_message(plan: LaunchPlan, nodes: Sequence[NodeObservation], least_steps: int = 1) -> str:
    """The proof that the ranks train separately, and the remedy; empty if there is none, or if the program decides that itself."""
    if len(nodes) < plan.node_count or plan.program.kind == "trainer" or plan.program.until_head:
        return ""
    reports = {node.node: node.progress for node in nodes}
    is_per_node = plan.program.per_node
    proof = separate_trainings(reports, plan.world_size, is_per_node=is_per_node, least_steps=least_steps)
    return f"{proof}; {joining_remedy(plan.verb, plan.program.args, is_per_node=is_per_node)}" if proof else ""


class SeparateWatch:
    """Looks for separate trainings while a run continues: two looks in a row must prove it."""

    def __init__(self, plan: LaunchPlan, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._plan, self._clock_s = plan, clock_s
        self._due_s = 0.0
        self._has_proof = False

    def message(self, nodes: Sequence[NodeObservation]) -> str:
        """The message, once it is proved; empty before, and if it is not time to look."""
        if self._clock_s() < self._due_s:
            return ""
        self._due_s = self._clock_s() + EVERY_S
        had_proof, found = self._has_proof, separate_message(self._plan, nodes, LEAST_STEPS)
        self._has_proof = bool(found)
        return found if had_proof else ""
