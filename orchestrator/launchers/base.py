"""The seam every launcher fills: start a plan, say where its node folders are, ask after it, stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.bundle import Bundle
from orchestrator.launchers.job import JobStatus

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.errors import NodeError
    from orchestrator.plan.plan import LaunchPlan


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """
    A folder on some machine that holds node folders of the run; `nodes` None means whichever appear there.

    `reach` gives the machine's endpoint, connected anew where the connection was lost; `failure` is why it could not be
    reached when the place was made.
    """

    reach: Callable[[], Endpoint]
    attempt_dir: str
    nodes: tuple[str, ...] | None
    failure: NodeError | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The machine's endpoint; NodeError if it cannot be reached."""
        return self.reach()

    @property
    def name(self) -> str:
        """Its name in a message."""
        return ", ".join(self.nodes) if self.nodes else "the shared folder"


class Launcher(Protocol):
    """Carries out one plan; holds its connections until closed."""

    @property
    def plan(self) -> LaunchPlan:
        """The plan as it is carried out: what is found at the start may change it."""
        ...

    def connect(self) -> Sequence[str]:
        """
        Reach everything that the launch needs; nothing is started or written yet.

        Returns:
            What to warn about, one sentence each.

        Raises:
            UsageError: the scheduler has not got what the plan asks for.
            NodesError: some nodes cannot be reached, or have no Python.
        """
        ...

    def start(self, bundle: Bundle) -> str | None:
        """
        Start the plan's agents, connecting if need be; return the scheduler's job id where there is one.

        Raises:
            LaunchError: not all of it was started; what was goes on until `undo`.
        """
        ...

    def undo(self) -> list[str]:
        """End at once what `start` may have started, and nothing else; returns what could not be ended, one sentence each."""
        ...

    def attempt(self) -> int:
        """The number of the newest attempt that has begun; 1 where none has."""
        ...

    def places(self, attempt: int) -> Sequence[NodeFolders]:
        """
        Where the node folders of an attempt are, connected but for those with a failure.

        Raises:
            NodesError: none can be reached.
        """
        ...

    def queue(self, job: str | None) -> JobStatus | None:
        """The scheduler's state of the job; None without a scheduler, or if no job was submitted."""
        ...

    def position(self, queue: JobStatus) -> str:
        """Where among the jobs that wait this one is, in words; empty where that cannot be known."""
        ...

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """End the run on every node, whatever state it is in; returns what could not be ended, one sentence each."""
        ...

    def close(self) -> None:
        """Close all connections; the run continues."""
        ...
