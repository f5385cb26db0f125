"""A launch that is planned, and the run that has started by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.client import Endpoint
from orchestrator.launch.preflight import CheckedNode
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.cards import close_all
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord

if TYPE_CHECKING:
    from orchestrator.records.cache.facts import KeptFacts
    from orchestrator.records.store import Store


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch that is planned and has not begun."""

    plan: LaunchPlan
    bundle: Bundle
    record: RunRecord
    private: Sequence[str]
    """Files that are neither sent to the nodes nor recorded."""
    warnings: tuple[str, ...]
    terminal: Terminal
    """For the prompts of all logins of the launch."""
    connected: Mapping[str, Endpoint]
    """The connections that planning needed, by node; `started` takes them over."""
    checked: Sequence[CheckedNode] = ()
    """The nodes that are checked before the start: none under Slurm, which chooses the nodes, and with --no-check."""
    skipped: Sequence[str] = ()
    """The names of checks that are left out."""
    shares_cards: bool = False
    """Start also on cards that other runs of this user hold."""
    wait_free_s: float | None = None
    """The longest wait for cards that other runs of this user hold; None: the launch is refused at once."""

    @property
    def code_lines(self) -> tuple[str, ...]:
        """The sentences about the code that is sent."""
        return tuple(self.bundle.report.at_launch()) if self.bundle.report else ()

    def kept_facts(self, store: Store) -> KeptFacts:
        """The facts of nodes that earlier launches with the same inventory and paths in --env have kept."""
        from orchestrator.records.cache.facts import KeptFacts  # only launches over SSH keep any

        return KeptFacts.of(store, self.record.inventory["digest"], self.record.request.get("variables", {}))

    def close(self) -> None:
        """Close the connections of a launch that does not begin."""
        close_all(self.connected)


@dataclass(frozen=True, slots=True)
class Launched:
    """A run that has started."""

    folder: RunFolder
    launcher: Launcher
    terminal_closed: bool = False
    """The terminal was closed during the launch, so the run cannot be shown."""
    planned: Planned | None = None
    """The launch as it was planned; None if another process has launched the run, and the record lacks a part of the launch."""
    unable_to_restart: str = ""
    """The reason why the run is not restarted, if `planned` is None."""
