"""Hearing the agents of a run: a thread a node asks beat after beat. What silence means is the supervisor's to say."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.backoff import backoff
from orchestrator.endpoint.client import BEAT_ANSWER_S, Beat, Endpoint
from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import LoginRefused, NodeError, NotListening, OrchError, Unreachable
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.names.hostlist import fold
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.store import RunFolder

NODES_A_BEAT_S = 200  # so many nodes are heard a second; fewer nodes are asked more often than once a second
QUICKEST_BEAT_S, SLOWEST_BEAT_S = 1.0, 3.0  # news does not wait for the beat
LAST_RETRY_S = 2.0  # well within the silence that makes a node suspect
PEERS = 3


@dataclass(slots=True)
class Ear:
    """What was heard of one node, and when; written by its thread, read by the supervisor."""

    node: NodePlan
    heard_s: float
    seen: NodeObservation | None = None
    failure: NodeError | None = None
    waits_s: float | None = None
    """Since when it waits for its turn to log in, which is nothing that the node could be blamed for."""
    refused_s: float | None = None
    """Since when its host refuses connections, while other nodes are heard."""
    asked_s: float = field(default=float("-inf"))
    """When the other nodes were last asked about it."""
    vote: str = ""
    """What they said, as it was noted."""
    is_deaf: bool = False
    """Its host lets this process not in, and asking again and again would help nobody."""

    def silent_s(self) -> float:
        """For how long nothing was heard, less what it waited for its turn."""
        return (self.waits_s or time.monotonic()) - self.heard_s


class Hearing:
    """All nodes of a run being heard, each by a thread of its own."""

    def __init__(self, folder: RunFolder, plan: LaunchPlan, launcher: DirectLauncher) -> None:
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self.ears = {node.name: Ear(node, time.monotonic()) for node in plan.nodes}
        self.news = threading.Event()
        self._beat_s = min(SLOWEST_BEAT_S, max(QUICKEST_BEAT_S, len(self.ears) / NODES_A_BEAT_S))
        self._turns = threading.Semaphore(int(plan.ssh["fanout"]))
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._hear, args=(ear,), daemon=True) for ear in self.ears.values()]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Hear all nodes within the context, until `enough`; afterwards nobody waits for an answer any more."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.enough()
            deadline = time.monotonic() + self._beat_s + BEAT_ANSWER_S
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def check(self) -> None:
        """
        Make sure that nobody has stopped listening who should not have.

        Raises:
            OrchError: a thread has died; why stands in the supervisor's log.
        """
        threads = zip(self.ears.values(), self._threads, strict=True)
        if died := [ear.node.name for ear, thread in threads if not (thread.is_alive() or ear.is_deaf)]:
            raise OrchError(f"nothing listens to {fold(died)} any more")

    def enough(self) -> None:
        """Ask for nothing more."""
        self._over.set()

    def _hear(self, ear: Ear) -> None:
        """Beat after beat; a lost connection is made anew."""
        endpoint: Endpoint | None = None
        seen: object = None
        pauses = backoff(LAST_RETRY_S)
        while not self._over.is_set() and not ear.is_deaf:
            try:
                if endpoint is None or not endpoint.connected:
                    endpoint = self._logged_in(ear)
                    continue
                beat = Beat(seen, self._peers_of(ear), self._beat_s)
                ear.seen, seen = endpoint.supervise(self._plan.attempt_dir(ear.node), ear.node.name, beat)
            except NodeError as failure:
                self._miss(ear, failure)
                seen = None
                self._over.wait(next(pauses))
            else:
                pauses = backoff(LAST_RETRY_S)
                self._take_in(ear)
            self.news.set()

    def _logged_in(self, ear: Ear) -> Endpoint | None:
        """At most `fanout` log in at the same time; None when it is all over by the time of its turn."""
        ear.waits_s = time.monotonic()
        with self._turns:
            ear.heard_s += time.monotonic() - ear.waits_s
            ear.waits_s = None
            return None if self._over.is_set() else self._launcher.reach(ear.node)

    def _take_in(self, ear: Ear) -> None:
        was_missed = ear.failure is not None
        ear.heard_s, ear.failure, ear.refused_s, ear.vote = time.monotonic(), None, None, ""
        if was_missed:
            self._folder.note("node-heard", f"{ear.node.name} is heard again")

    def _miss(self, ear: Ear, failure: NodeError) -> None:
        is_first, ear.failure = ear.failure is None, failure
        if not isinstance(failure, Unreachable):  # its host answers, if only that its disk is full
            ear.heard_s = time.monotonic()
        ear.refused_s = (ear.refused_s or time.monotonic()) if isinstance(failure, NotListening) else None
        ear.is_deaf = isinstance(failure, LoginRefused)  # nobody is there to help with it
        if is_first:
            self._folder.note("node-missed", f"{failure}")
        if ear.is_deaf:
            self._folder.note("node-unsupervised", f"{ear.node.name} goes on without supervision")

    def _peers_of(self, ear: Ear) -> list[str]:
        """The addresses of the other nodes, as far as they are known."""
        others = [other.seen.agent for other in self.ears.values() if other is not ear and other.seen]
        return [agent.address for agent in others if agent and agent.address][:PEERS]
