"""One connection per node, which the threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from orchestrator.endpoint.access import TransportFactory
from orchestrator.endpoint.client import HEARTBEAT_ANSWER_S, Endpoint
from orchestrator.errors import Unreachable
from orchestrator.fanout import map_parallel
from orchestrator.plan.plan import NodePlan

KEEP_S = 20.0  # between two requests to an endpoint, which ends after 60 s without one, and its standby with it


class ConnectionPool:
    """Opens the connection to a node when it is first needed, and again once it is lost."""

    def __init__(self, transport: TransportFactory, connected: Mapping[str, Endpoint] = MappingProxyType({})) -> None:
        self.transport = transport
        self.is_closed = False
        self._endpoints = dict(connected)
        self._opening: dict[str, Endpoint] = {}
        self._queued_s: dict[str, float] = {}
        """For login slots, without the present login."""
        self._locks: dict[str, threading.Lock] = {}
        """Each held while a thread opens the connection to that node."""

    def reach(self, node: NodePlan, *, reconnects: bool = True) -> Endpoint:
        """
        The node's endpoint; a lost connection is opened again.

        Raises:
            Unreachable: also if the connection was lost and `reconnects` is False, or the pool is closed.
        """
        lost = self._endpoints.get(node.name)
        if lost is not None and not lost.connected and not reconnects:
            raise Unreachable(node.name, "the connection was lost")
        with self._locks.setdefault(node.name, threading.Lock()):
            endpoint = self.connected(node)
            if endpoint is None:
                if lost := self._endpoints.get(node.name):
                    lost.close()  # its connection may still be up: a reply came too late
                endpoint = self._endpoints[node.name] = self._open(node)
            return endpoint

    def connected(self, node: NodePlan) -> Endpoint | None:
        """The node's endpoint; None without a connection."""
        endpoint = self._endpoints.get(node.name)
        return endpoint if endpoint is not None and endpoint.connected else None

    def remarks(self) -> dict[str, list[str]]:
        """Remark of the transport -> names of the nodes with it."""
        found: dict[str, list[str]] = {}
        for name, endpoint in tuple(self._endpoints.items()):  # spare nodes may be connected meanwhile
            if endpoint.remark:
                found.setdefault(endpoint.remark, []).append(name)
        return found

    def queued_s(self, node: NodePlan) -> float:
        """The seconds that all logins to the node so far have waited for a login slot."""
        opening = self._opening.get(node.name)
        return self._queued_s.get(node.name, 0.0) + (opening.queued_s if opening else 0.0)

    @contextmanager
    def kept_alive(self, nodes: Sequence[NodePlan]) -> Iterator[None]:
        """Send requests to the endpoints of these nodes while no others are sent; without a connection, none is opened."""
        is_over = threading.Event()

        def request(node: NodePlan) -> None:
            endpoint = self.connected(node)
            if endpoint is not None:
                endpoint.clock_ahead(wait_s=HEARTBEAT_ANSWER_S)

        def keep() -> None:
            while not is_over.is_set():
                map_parallel(nodes, request, limit=len(nodes))
                is_over.wait(KEEP_S)

        thread = threading.Thread(target=keep, name="keep", daemon=True)
        with suppress(RuntimeError):  # no more threads: the next request starts the endpoints that have ended
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            if thread.ident is not None:
                thread.join()

    def close(self) -> None:
        """Close all connections at once, also those that other threads open or wait on; no more are opened."""
        self.is_closed = True
        endpoints = (*self._opening.values(), *self._endpoints.values())
        # At once: a local endpoint waits for its process to end.
        map_parallel(endpoints, lambda endpoint: endpoint.close(), limit=len(endpoints))
        self._endpoints.clear()

    def _open(self, node: NodePlan) -> Endpoint:
        endpoint = self._opening[node.name] = Endpoint(self.transport(node), node.python)
        try:
            if self.is_closed:
                raise Unreachable(node.name, "the launcher was closed")
            endpoint.open()
        finally:
            self._queued_s[node.name] = self._queued_s.get(node.name, 0.0) + endpoint.queued_s
            del self._opening[node.name]
        return endpoint
