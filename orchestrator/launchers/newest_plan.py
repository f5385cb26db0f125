"""The plan of a run's newest attempt, as the threads of a process begin it and learn of it."""

from __future__ import annotations

import threading

from orchestrator.plan.plan import LaunchPlan


class NewestPlan:
    """Holds the plan; one thread at a time replaces it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._begun = 0  # the newest attempt that `begin` has taken
        self._lock = threading.Lock()

    def get(self) -> LaunchPlan:
        return self._plan

    def begin(self, plan: LaunchPlan) -> None:
        """Take the plan of an attempt that this process starts; a reader of the logs may have learnt of it before."""
        with self._lock:
            self._begun = max(self._begun, plan.attempt)
            self._plan = plan

    def learn(self, plan: LaunchPlan) -> None:
        """
        Take the plan of an attempt that another process or thread starts; it may start it on other nodes.

        Not once this process has begun the attempt: the plan in the record has no variables, and may be an older one.
        """
        with self._lock:
            if plan.attempt <= self._begun:
                return
            is_newer = plan.attempt > self._plan.attempt
            if is_newer or (plan.attempt == self._plan.attempt and _names(plan) != _names(self._plan)):
                self._plan = plan


def _names(plan: LaunchPlan) -> list[str]:
    return [node.name for node in plan.nodes]
