"""The owner's answers to the queries of commands: it observes and stops the nodes, and reads their logs, over its connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from orchestrator.errors import Unreachable
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.logs.follow import Feed
from orchestrator.logs.history import history, reposition
from orchestrator.logs.lines import last
from orchestrator.plan.plan import GRACE_S, LaunchPlan
from orchestrator.supervision.poller import NodeState
from orchestrator.supervision.queries import LINES, MOST_LINES, OBSERVE, STOP, Answer, Json, observations_json
from orchestrator.verdict.observe import STRAGGLER_S, observe_folders


class Answers:
    """The answers during one attempt; None where a login of the command itself may find more."""

    def __init__(self, plan: LaunchPlan, launcher: DirectLauncher, states: Mapping[str, NodeState]) -> None:
        self._plan = plan
        self._launcher = launcher
        self._states = states
        self.is_over = False
        """The attempt is ending: its nodes are polled no more."""
        self.is_stopping = False
        """The nodes are being stopped; a second request to each at the same time would be late with a thousand nodes."""

    @property
    def by_kind(self) -> Mapping[str, Answer]:
        """The answer to each kind of query."""
        return {OBSERVE: self._observe, STOP: self._stop, LINES: self._lines}

    def _observe(self) -> Json | None:
        """Query all nodes but those that do not answer."""
        if self._is_refused:
            return None
        return observations_json(*observe_folders(self._folders(), straggler_s=STRAGGLER_S))

    def _folders(self) -> list[AttemptFolder]:
        return [
            replace(folder, failure=_unreachable(self._states[folder.name]))
            for folder in self._launcher.attempt_folders(self._plan.attempt, connect=False)
        ]

    def _lines(self) -> Json | None:
        """Read the last lines of the attempt on all nodes but those that do not answer."""
        if self._is_refused:
            return None
        feeds = [Feed(folder) for folder in self._folders() if folder.failure is None]
        limit = int(self._plan.ssh["fanout"])
        reposition(feeds, lambda feed: feed.begin_at_last(MOST_LINES), limit=limit)
        return {"lines": [asdict(group) for group in last(history(feeds, limit=limit), MOST_LINES)]}

    def _stop(self) -> Json | None:
        """End the processes of the run on all nodes but those that do not answer, which the command tries itself."""
        if self._is_refused:
            return None
        silent = [name for name, state in self._states.items() if _unreachable(state)]
        nodes = [state.node for name, state in self._states.items() if name not in silent]
        self.is_stopping = True
        try:
            return {"left": self._launcher.stop_nodes(nodes, grace_s=GRACE_S), "silent": silent}
        finally:
            self.is_stopping = False

    @property
    def _is_refused(self) -> bool:
        return self.is_over or any(state.login_refused for state in self._states.values())


def _unreachable(state: NodeState) -> Unreachable | None:
    return state.failure if isinstance(state.failure, Unreachable) else None
