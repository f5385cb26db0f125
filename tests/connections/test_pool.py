"""Threads share one connection per node, and one of them opens it."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from orchestrator.connections.pool import ConnectionPool
from orchestrator.endpoint.access import Destination
from orchestrator.errors import Unreachable
from orchestrator.plan.plan import NodePlan
from orchestrator.transports.local import LocalTransport

pytestmark = pytest.mark.processes
NODE = NodePlan("n0", "127.0.0.1", 0, range(1), {}, None, None, "python3", "/nonexistent")


def test_threads_that_reach_a_node_at_once_share_one_connection() -> None:
    opened: list[str] = []

    def transport(node: Destination) -> LocalTransport:
        opened.append(node.name)
        return LocalTransport(node.name)

    with closing(ConnectionPool(transport)) as pool:
        threads = [threading.Thread(target=pool.reach, args=(NODE,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert opened == ["n0"]
        assert pool.connected(NODE) is pool.reach(NODE)


def test_lost_connection_is_replaced_only_if_allowed() -> None:
    with closing(ConnectionPool(lambda node: LocalTransport(node.name))) as pool:
        lost = pool.reach(NODE)
        lost.close()
        assert pool.connected(NODE) is None
        with pytest.raises(Unreachable, match="the connection was lost"):
            pool.reach(NODE, reconnects=False)
        assert pool.reach(NODE) is not lost


def test_closed_pool_opens_no_connection() -> None:
    pool = ConnectionPool(lambda node: LocalTransport(node.name))
    pool.close()
    with pytest.raises(Unreachable, match="closed"):
        pool.reach(NODE)
    assert pool.queued_s(NODE) == 0.0
