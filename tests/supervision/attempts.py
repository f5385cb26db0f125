"""Next attempts that no node starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.launch.start import NextAttempts
from orchestrator.plan.plan import LaunchPlan, NodePlan


class StubAttempts(NextAttempts):
    """Each is connected and started by the given functions; what they raise is the failure. All nodes can be used by default."""

    def __init__(
        self,
        *,
        connect: Callable[[LaunchPlan], object] = lambda _: None,
        start: Callable[[LaunchPlan], object] = lambda _: None,
        send_code: Callable[[NodePlan], bool] = lambda _: True,
        free: Collection[str] | None = (),
    ) -> None:
        self._connect, self._start, self._send_code, self._free = connect, start, send_code, free

    def connect(self, plan: LaunchPlan) -> None:
        self._connect(plan)

    def start(self, plan: LaunchPlan) -> LaunchPlan:
        self._start(plan)
        return plan

    def send_code(self, node: NodePlan) -> bool:
        return self._send_code(node)

    def free_nodes(self, nodes: Sequence[NodePlan]) -> set[str]:
        return {node.name for node in nodes} if self._free is None else set(self._free)
