"""Polls the nodes of a run, one thread per node. The supervisor judges nodes that do not answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.backoff import backoff
from orchestrator.endpoint.client import HEARTBEAT_ANSWER_S, Endpoint, Heartbeat
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import LoginRefused, NodeError, NotListening, OrchError, Unreachable
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.verdict.observe import stopped_agents

POLLS_PER_S = 200  # of all nodes together
SHORTEST_POLL_S, LONGEST_POLL_S = 1.0, 3.0  # how long a node waits for news before it answers
LAST_RETRY_S = 2.0  # much shorter than the silence after which other nodes are queried
FIRST_LOGIN_RETRY_S, LAST_LOGIN_RETRY_S = 300.0, 3600.0  # after a refused login: some sites lock an account after a few
PEERS = 3


@dataclass(slots=True)
class NodeState:
    """
    The state of one node by its polls; times are of time.monotonic().

    Both the node's thread and the supervisor write it, without a lock: a value may change between two reads.
    """

    node: NodePlan
    answered_s: float
    """When it last answered."""
    observation: NodeObservation | None = None
    """The observation in its last answer."""
    failure: NodeError | None = None
    """Why the last poll failed; None if it did not."""
    queued_s: float = 0.0
    """How long its logins had queued for a slot at its last answer."""
    refusing_s: float | None = None
    """When its host began to refuse connections, while other nodes answer."""
    witnesses_queried_s: float = float("-inf")
    """When other nodes were last queried whether they reach it."""
    unreached_s: float | None = None
    """When the head was found not to reach the silent node, which ended the attempt: it was cut off by then."""
    witness_report: str = ""
    """The last recorded result of that query."""
    login_refused: bool = False
    """The node refused the last login; it is polled again after a long pause."""


class Poller:
    """Polls all nodes of a run."""

    def __init__(self, folder: RunFolder, plan: LaunchPlan, launcher: DirectLauncher) -> None:
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self.states = {
            node.name: NodeState(node, time.monotonic(), queued_s=launcher.queued_s(node)) for node in plan.nodes
        }
        self.changed = threading.Event()
        """Set after every poll that has news: another state of an agent, a failure, or the end of one."""
        self._poll_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, len(self.states) / POLLS_PER_S))
        self.prepares_restart = False
        """Let the ranks of the next attempt import their modules on each node where all ranks train."""
        self.prepared: dict[str, Endpoint] = {}
        """The nodes where that was requested, and the connection with which it ends."""
        self._stopping = threading.Event()
        self._threads = {
            name: threading.Thread(target=self._poll_on, args=(state,), daemon=True)
            for name, state in self.states.items()
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Poll until the context ends, or `stop`; wait for polls in progress, at most as long as a heartbeat may take."""
        try:
            self._start_threads()
            yield
        finally:
            self.stop()
            deadline = time.monotonic() + self._poll_s + HEARTBEAT_ANSWER_S
            for thread in self._threads.values():
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _start_threads(self) -> None:
        """Start the threads that have not started; those that the user may not have now are tried again by the next check."""
        waiting = [name for name, thread in self._threads.items() if thread.ident is None]
        for index, name in enumerate(waiting):
            try:
                self._threads[name].start()
            except RuntimeError as error:
                reason = f"it is not polled: {error}: your user may have no more (ulimit -u)"
                for unpolled in waiting[index:]:
                    self._failed(self.states[unpolled], Unreachable(unpolled, reason))
                return

    def check(self) -> None:
        """
        Check that all nodes are polled.

        Raises:
            OrchError: a thread has died; its traceback is in the supervisor's log.
        """
        self._start_threads()
        if died := [name for name, thread in self._threads.items() if thread.ident and not thread.is_alive()]:
            raise OrchError(f"the threads that poll {fold(died)} have died")

    def observations(self) -> list[NodeObservation]:
        """The last observation of each node that has answered."""
        return [state.observation for state in self.states.values() if state.observation is not None]

    def silent_s(self, state: NodeState) -> float:
        """The seconds since the node's last answer, without the time in the queue for a login."""
        return time.monotonic() - state.answered_s - (self._launcher.queued_s(state.node) - state.queued_s)

    def stop(self) -> None:
        """Start no more polls."""
        self._stopping.set()

    def _poll_on(self, state: NodeState) -> None:
        """Poll one node until polling stops; a lost connection is replaced."""
        endpoint: Endpoint | None = None
        known: object = None
        pauses, login_pauses = backoff(LAST_RETRY_S), backoff(LAST_LOGIN_RETRY_S, FIRST_LOGIN_RETRY_S)
        while not self._stopping.is_set():
            try:
                if endpoint is None or not endpoint.connected:
                    endpoint = self._launcher.reach(state.node)
                    continue
                heartbeat = Heartbeat(known, self._peers_of(state), self._poll_s)
                attempt_dir = self._plan.attempt_dir(state.node)
                observation, new_known = endpoint.heartbeat(attempt_dir, state.node.name, heartbeat)
            except NodeError as failure:
                known = None
                self._failed(state, failure)
                self.changed.set()
                self._stopping.wait(next(login_pauses if state.login_refused else pauses))
            else:
                pauses = backoff(LAST_RETRY_S)
                has_news = new_known != known or state.failure is not None
                known = new_known
                self._answered(state, observation)
                if self.prepares_restart and self.prepared.get(state.node.name) is not endpoint:
                    self._prepare_restart(state, endpoint, observation)
                if has_news:
                    self.changed.set()

    def _answered(self, state: NodeState, observation: NodeObservation) -> None:
        had_failed = state.failure is not None
        was_stopped = state.observation is not None and state.observation.stopped
        state.observation = observation
        self._note_answer(state)
        state.failure = None
        state.refusing_s = None
        state.witness_report = ""
        if had_failed:
            self._folder.add_event("node-answered", f"{state.node.name} answers again")
        if state.login_refused:
            state.login_refused = False
            self._record_refusal(state.node.name, None)
        if observation.stopped and not was_stopped:
            for text in stopped_agents([observation], self._plan.run_id):
                self._folder.add_event("agent-stopped", text)
        elif was_stopped and observation.alive and not observation.stopped:
            self._folder.add_event("agent-continued", f"the agent on {state.node.name} continues")

    def _prepare_restart(self, state: NodeState, endpoint: Endpoint, observation: NodeObservation) -> None:
        """Prepare the next attempt, once the start of this one does not need the processors any more."""
        trains = [progress.get("phase") != "init" for progress in observation.progress.values()]
        if observation.agent is None or len(trains) < len(state.node.ranks) or not all(trains):
            return
        self.prepared[state.node.name] = endpoint
        try:
            if not self._stopping.is_set():
                self._launcher.stand_by(state.node.name, observation.agent.rendezvous)
        except NodeError as error:  # a restart takes longer without it
            self._folder.add_event("not-prepared", f"a restart is not prepared: {error}")

    def _failed(self, state: NodeState, failure: NodeError) -> None:
        is_first = state.failure is None
        state.failure = failure
        if not isinstance(failure, Unreachable):  # its host answers, even if it only reports a full disk
            self._note_answer(state)
        if not isinstance(failure, NotListening):
            state.refusing_s = None
        elif state.refusing_s is None:
            state.refusing_s = time.monotonic()
        if is_first:
            self._folder.add_event("node-failed", f"{failure}")
        if isinstance(failure, LoginRefused) and not state.login_refused:
            state.login_refused = True
            self._folder.add_event("node-unsupervised", f"{state.node.name} continues without supervision")
            self._record_refusal(state.node.name, failure.reason)

    def _note_answer(self, state: NodeState) -> None:
        state.queued_s = self._launcher.queued_s(state.node)
        state.answered_s = time.monotonic()

    def _record_refusal(self, node: str, reason: str | None) -> None:
        """Record why the node is not supervised; None: it is."""

        def changed(record: RunRecord) -> RunRecord:
            remaining = {name: text for name, text in record.unsupervised.items() if name != node}
            return replace(record, unsupervised=remaining if reason is None else {**remaining, node: reason})

        with contextlib.suppress(OSError):  # a full disk here must not end the supervision; the event has it
            self._folder.change(changed)

    def _peers_of(self, state: NodeState) -> list[str]:
        """The known addresses of at most PEERS other nodes."""
        agents = (peer.observation.agent for peer in self.states.values() if peer is not state and peer.observation)
        return list(islice((agent.address for agent in agents if agent and agent.address), PEERS))
