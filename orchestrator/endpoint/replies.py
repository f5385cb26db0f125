"""
The other replies of an endpoint: the facts of a node, the result of a command, and what a stop has left.

A node imports no dataclasses, so that Facts repeats a type of node/protocol/ field by field; type checkers compare the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.node.protocol.agents import SignalledBody, StopBody


@dataclass(frozen=True, slots=True)
class Facts:
    """
    The facts of a node.

    `clock_ahead_s` is its clock minus its clock since boot, `host_id` is equal for two processes that share a loopback interface, `cards` counts device
    files by accelerator.
    """

    python: str
    hostname: str
    host_id: str
    home: str
    user: str
    cards: Mapping[str, int]
    pid: int
    clock_ahead_s: float


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code of a command on the node (127: no such command, 124: it took too long) and its output."""

    code: int
    out: str
    err: str


IN_KERNEL_TEXT = (
    ", which was killed but waits in the kernel (state D), for a disk or a driver: it ends once that answers"
)


@dataclass(frozen=True, slots=True)
class StopResult:
    """The signals sent to stop a node folder's processes, and the pids that are still alive."""

    node: str
    signalled: tuple[SignalledBody, ...]
    remaining: tuple[int, ...]
    in_kernel: tuple[int, ...] = ()
    """The remaining ones that no signal ends before their disk or driver has answered."""

    @classmethod
    def of(cls, body: StopBody) -> StopResult:
        return cls(body["node"], tuple(body["signalled"]), tuple(body["remaining"]), tuple(body["in_kernel"]))

    @property
    def left(self) -> list[str]:
        """One text for each remaining process."""
        return [f"pid {pid}{IN_KERNEL_TEXT if pid in self.in_kernel else ''}" for pid in self.remaining]
