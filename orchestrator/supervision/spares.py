"""Keeps the spare nodes of a run prepared for a restart, as its nodes are: connected, with the code, and with ranks that have imported their modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.backoff import backoff
from orchestrator.endpoint.client import HEARTBEAT_ANSWER_S, Endpoint
from orchestrator.errors import NodeError
from orchestrator.launch.start import NextAttempts
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import NodePlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.supervision.poller import FIRST_LOGIN_RETRY_S, LAST_LOGIN_RETRY_S

EVERY_S = 2.0  # between two requests to a spare node, which also keep its endpoint


class Spares:
    """The spare nodes of one attempt, with a thread for each."""

    def __init__(self, folder: RunFolder, launcher: DirectLauncher, rendezvous: Callable[[], str | None]) -> None:
        """Prepare to begin; `rendezvous` returns None until they are to be prepared."""
        self._folder = folder
        self._launcher = launcher
        self._rendezvous = rendezvous
        self.prepared: dict[str, Endpoint] = {}
        """The spare nodes that have what a restart needs, and the connection with which it ends."""
        self._stopping = threading.Event()

    @property
    def nodes(self) -> list[NodePlan]:
        """The prepared nodes, also those that have become nodes of the run."""
        plan = self._launcher.plan
        return [node for node in (*plan.spares, *plan.nodes) if node.name in self.prepared]

    @contextmanager
    def kept(self, next_attempts: NextAttempts | None) -> Iterator[None]:
        """Prepare and keep them, until the context ends, or `stop`; nothing is done if there are no next attempts."""
        for node in self._launcher.plan.spares if next_attempts is not None else ():
            try:
                threading.Thread(target=self._keep, args=(node, next_attempts), name="spare", daemon=True).start()
            except RuntimeError as error:  # the user may have no more threads, and the run needs none of these
                self._add_event(NodeError(node.name, str(error)))
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Prepare no more of them."""
        self._stopping.set()

    def _keep(self, node: NodePlan, next_attempts: NextAttempts) -> None:
        """Prepare one of them, again over each new connection. Logins are rare: some sites lock an account after a few failures."""
        pauses = backoff(LAST_LOGIN_RETRY_S, FIRST_LOGIN_RETRY_S)
        while not self._stopping.is_set():
            rendezvous, endpoint = self._rendezvous(), self._launcher.connected_endpoint(node)
            try:
                if rendezvous is not None and (endpoint is None or self.prepared.get(node.name) is not endpoint):
                    self._prepare(node, rendezvous, next_attempts)
                elif endpoint is not None:
                    endpoint.clock_ahead(wait_s=HEARTBEAT_ANSWER_S)
            except NodeError as error:  # a restart takes longer without it
                if not self._stopping.is_set():
                    self._add_event(error)
                has_lost_connection = endpoint is not None and not endpoint.connected  # no login has failed
                self._stopping.wait(EVERY_S if has_lost_connection else next(pauses))
            else:
                pauses = backoff(LAST_LOGIN_RETRY_S, FIRST_LOGIN_RETRY_S)
                self._stopping.wait(EVERY_S)

    def _add_event(self, error: NodeError) -> None:
        self._folder.add_event("not-prepared", f"a restart is not prepared on a spare node: {error}")

    def _prepare(self, node: NodePlan, rendezvous: str, next_attempts: NextAttempts) -> None:
        endpoint = self._launcher.reach(node)
        if next_attempts.send_code(node) and not self._stopping.is_set():
            self.prepared[node.name] = endpoint
            self._launcher.stand_by(node.name, rendezvous)
