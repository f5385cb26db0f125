"""The nodes of a run, each polled by a thread of its own. The supervisor judges what their silence means."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.backoff import backoff
from orchestrator.endpoint.client import HEARTBEAT_ANSWER_S, Endpoint, Heartbeat
from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import LoginRefused, NodeError, NotListening, OrchError, Unreachable
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.names.hostlist import fold
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.store import RunFolder

POLLS_PER_S = 200  # of all nodes together
SHORTEST_POLL_S, LONGEST_POLL_S = 1.0, 3.0  # a node with news answers at once
LAST_RETRY_S = 2.0  # well within the silence that makes a node suspect
PEERS = 3


@dataclass(slots=True)
class NodeState:
    """One node as its polls show it; written by its thread, read by the supervisor. Times are of time.monotonic()."""

    node: NodePlan
    answered_s: float
    """When it last answered."""
    observation: NodeObservation | None = None
    """Its last answer."""
    failure: NodeError | None = None
    """Why the last poll failed; None if it did not."""
    queued_s: float | None = None
    """When it began to queue for a login slot; time in the queue does not count as silence."""
    refusing_s: float | None = None
    """When its host began to refuse connections, while other nodes answer."""
    suspected_s: float = float("-inf")
    """When other nodes were last asked whether they reach it."""
    witness_report: str = ""
    """The last result of that, as it was recorded."""
    login_refused: bool = False
    """The host refused our login; it is not polled any more."""

    def silent_s(self) -> float:
        """How long it has not answered, without the time in the queue for a login."""
        return (self.queued_s or time.monotonic()) - self.answered_s


class Listeners:
    """Polls all nodes of a run."""

    def __init__(self, folder: RunFolder, plan: LaunchPlan, launcher: DirectLauncher) -> None:
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self.states = {node.name: NodeState(node, time.monotonic()) for node in plan.nodes}
        self.changed = threading.Event()
        """Set after every poll."""
        self._poll_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, len(self.states) / POLLS_PER_S))
        self._login_slots = threading.Semaphore(int(plan.ssh["fanout"]))
        self._stopping = threading.Event()
        self._threads = {
            name: threading.Thread(target=self._poll_on, args=(state,), daemon=True)
            for name, state in self.states.items()
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Poll within the context, or until `stop`; no poll is in progress after it."""
        started: list[threading.Thread] = []
        try:
            for thread in self._threads.values():
                thread.start()
                started.append(thread)
            yield
        finally:
            self.stop()
            deadline = time.monotonic() + self._poll_s + HEARTBEAT_ANSWER_S
            for thread in started:
                thread.join(max(0.0, deadline - time.monotonic()))

    def check(self) -> None:
        """
        Make sure that every node is polled whose login is not refused.

        Raises:
            OrchError: a thread has died; its traceback is in the supervisor's log.
        """
        died = [
            name
            for name, thread in self._threads.items()
            if not thread.is_alive() and not self.states[name].login_refused
        ]
        if died:
            raise OrchError(f"the threads that poll {fold(died)} have died")

    def stop(self) -> None:
        """Begin no poll any more."""
        self._stopping.set()

    def _poll_on(self, state: NodeState) -> None:
        """Poll one node again and again; a lost connection is made anew."""
        endpoint: Endpoint | None = None
        seen: object = None
        pauses = backoff(LAST_RETRY_S)
        while not self._stopping.is_set() and not state.login_refused:
            try:
                if endpoint is None or not endpoint.connected:
                    endpoint = self._log_in(state)
                    continue
                beat = Heartbeat(seen, self._peers_of(state), self._poll_s)
                observation, seen = endpoint.heartbeat(self._plan.attempt_dir(state.node), state.node.name, beat)
            except NodeError as failure:
                seen = None
                self._failed(state, failure)
                self._stopping.wait(next(pauses))
            else:
                pauses = backoff(LAST_RETRY_S)
                self._answered(state, observation)
            self.changed.set()

    def _log_in(self, state: NodeState) -> Endpoint | None:
        """Connect, at most `fanout` nodes at the same time; None if polling has stopped by then."""
        state.queued_s = time.monotonic()
        with self._login_slots:
            state.answered_s += time.monotonic() - state.queued_s
            state.queued_s = None
            return None if self._stopping.is_set() else self._launcher.reach(state.node)

    def _answered(self, state: NodeState, observation: NodeObservation) -> None:
        had_failed = state.failure is not None
        state.observation = observation
        state.answered_s = time.monotonic()
        state.failure = None
        state.refusing_s = None
        state.witness_report = ""
        if had_failed:
            self._folder.add_event("node-answered", f"{state.node.name} answers again")

    def _failed(self, state: NodeState, failure: NodeError) -> None:
        is_first = state.failure is None
        state.failure = failure
        if not isinstance(failure, Unreachable):  # its host answers, if only that its disk is full
            state.answered_s = time.monotonic()
        if not isinstance(failure, NotListening):
            state.refusing_s = None
        elif state.refusing_s is None:
            state.refusing_s = time.monotonic()
        if is_first:
            self._folder.add_event("node-failed", f"{failure}")
        if isinstance(failure, LoginRefused):  # a retry cannot help: there is nobody to answer for it
            state.login_refused = True
            self._folder.add_event("node-unsupervised", f"{state.node.name} goes on without supervision")

    def _peers_of(self, state: NodeState) -> list[str]:
        """Addresses of a few other nodes, as far as they are known."""
        agents = [other.observation.agent for other in self.states.values() if other is not state and other.observation]
        return [agent.address for agent in agents if agent and agent.address][:PEERS]
