"""The interface of every launcher: learn what a plan depends on, start it, list its node folders, query its job, stop it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.launchers.job import JobStatus

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle  # imports tarfile and hashlib, which only a launch needs
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.endpoint.logs import BatchLog
    from orchestrator.errors import NodeError
    from orchestrator.plan.plan import LaunchPlan
    from orchestrator.plan.resolve import Facts


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """
    An attempt's folder on one machine, with node folders in it; `nodes` None means all that appear there.

    `reach` returns the machine's endpoint and reconnects if the connection was lost. `failure` is the error if the machine
    could not be reached at first.
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
        """Its name in messages."""
        return ", ".join(self.nodes) if self.nodes else "the shared folder"


class Launcher(Protocol):
    """
    Carries out plans of one run, and changes none; holds its connections until closed.

    `connect` and `push` return the facts by which `resolve` makes the plan that `start` gets.
    """

    @property
    def plan(self) -> LaunchPlan:
        """The plan that was started last; before that, the one that is to be."""
        ...

    def connect(self, plan: LaunchPlan) -> Facts:
        """
        Connect to everything that the launch needs; nothing is started or written yet.

        Raises:
            UsageError: the scheduler does not have what the plan requests.
            NodesError: some nodes cannot be reached, or have no Python.
        """
        ...

    def push(self, plan: LaunchPlan, bundle: Bundle) -> Facts:
        """Write the code, and the files that are equal on all nodes."""
        ...

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:
        """
        Write the scripts and start the agents; return the scheduler's job id, if there is a scheduler.

        Args:
            bundle: pushed before, and written to the nodes that lack it by the facts of the plan.

        Raises:
            LaunchError: not all agents were started; those that were run until `undo`.
        """
        ...

    def undo(self) -> list[str]:
        """End at once what `start` may have started, and nothing else; returns failures, one sentence each."""
        ...

    def attempt(self) -> int:
        """The number of the newest attempt that has begun; 1 if none has."""
        ...

    def attempt_folders(
        self, attempt: int, nodes: Collection[str] | None = None, *, connect: bool = True
    ) -> Sequence[AttemptFolder]:
        """
        The folders of an attempt, one per machine to read; their machines are connected, except those with a `failure`.

        Args:
            nodes: the nodes whose folders are needed, others may be left out; None means all.
            connect: False if the machines of the folders need not be connected yet.

        Raises:
            NodesError: no machine can be reached.
        """
        ...

    def job_status(self, job: str | None) -> JobStatus | None:
        """The job's status by the scheduler; None without a scheduler, or if no job was submitted."""
        ...

    def batch_log(self, max_bytes: int) -> BatchLog | None:
        """The end of what the scheduler's batch script wrote; None without one, or if it is not in the run's folder."""
        ...

    def position(self, status: JobStatus) -> str:
        """The job's position among those that wait, as text; empty if it is not known."""
        ...

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """End the run on every node, whatever its state; returns failures, one sentence each."""
        ...

    def close(self) -> None:
        """Close all connections; the run continues."""
        ...
