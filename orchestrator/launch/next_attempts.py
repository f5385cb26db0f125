"""Start the attempts of a run over SSH that follow the first one, in the process that owns the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.errors import LaunchError, OrchError
from orchestrator.fanout import map_parallel
from orchestrator.launch.planned import Planned
from orchestrator.launch.preflight import checked_nodes
from orchestrator.launch.start import push_and_resolve
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.records.runs import home_store
from orchestrator.records.store import RunFolder


class NextAttempts:
    """Connects to the nodes of an attempt and starts it; which nodes those are is decided before (supervision/restart.py)."""

    def __init__(
        self, planned: Planned, folder: RunFolder, launcher: DirectLauncher, on_warning: Callable[[str], None]
    ) -> None:
        self._planned = planned
        self._folder = folder
        self._launcher = launcher
        self._on_warning = on_warning

    def connect(self, plan: LaunchPlan) -> None:
        """
        Connect to the nodes of an attempt, before the log readers learn of it: a spare node may be unreachable.

        Raises:
            OrchError: some cannot be used, or the run was stopped; nothing has begun.
        """
        self._launcher.connect(plan)
        if self._planned.checked and "shared" not in self._planned.skipped:
            from orchestrator.launch.spare_check import require_visible_checkpoints  # few runs restart

            require_visible_checkpoints(self._launcher, plan)
        self._require_not_stopped()  # `orch stop` may have recorded the end meanwhile

    def start(self, plan: LaunchPlan) -> LaunchPlan:
        """
        Check the connected nodes and start the agents; return the plan as it was carried out.

        Raises:
            OrchError: that failed, and nothing of the attempt is left running, or it is named.
        """
        self._launcher.begin_attempt(plan)
        checked = checked_nodes(plan) if self._planned.checked else ()
        self._planned.kept_facts(home_store()).update({node.name: None for node in checked})
        try:
            planned = replace(self._planned, plan=plan, checked=checked)
            plan = push_and_resolve(planned, self._launcher, self._folder, self._on_warning)
            self._require_not_stopped()
            self._launcher.start(plan, planned.bundle)
            self._require_not_stopped()
        except BaseException as error:
            left = self._launcher.undo()
            if left and isinstance(error, OrchError):  # a NodesError would replace a spare node while its agent may run
                raise LaunchError("\n  ".join([str(error), "not everything could be stopped:", *left])) from error
            raise
        return plan

    def send_code(self, node: NodePlan) -> bool:
        """Prepare a spare node, see DirectLauncher.send_code."""
        return self._launcher.send_code(node, self._planned.bundle)

    def free_nodes(self, nodes: Sequence[NodePlan]) -> set[str]:
        """The names of the nodes that can be reached, and on which nothing of the run is left after what remained was ended."""
        outcomes = map_parallel(nodes, self._end_remaining, limit=max(1, len(nodes)))
        return {node.name for node, left in zip(nodes, outcomes, strict=True) if left == []}

    def _end_remaining(self, node: NodePlan) -> list[int]:
        """End the processes of all attempts of the run on a node; return the pids of those that are left."""
        endpoint, plan = self._launcher.reach(node), self._launcher.plan
        folders = [replace(plan, attempt=attempt).attempt_dir(node) for attempt in range(1, plan.attempt + 1)]
        return [
            pid
            for folder in folders
            for result in endpoint.stop(folder, [node.name], grace_s=0.0)
            for pid in result.remaining
        ]

    def _require_not_stopped(self) -> None:
        if self._folder.is_stop_requested() or self._folder.read().state.ended:
            raise LaunchError("the run was stopped")
