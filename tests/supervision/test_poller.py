"""The threads that poll nodes: how many log in at the same time, and how often they retry."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from orchestrator.errors import Unreachable
from orchestrator.inventory.model import Inventory, Node, SshOptions
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request
from orchestrator.store import RunFolder
from orchestrator.supervision.poller import Poller
from orchestrator.transports.local import LocalChannel, LocalTransport
from tests.until import until


class Logins:
    """Counts logins, which fail when the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: dict[str, list[float]] = defaultdict(list)
        self.ended = 0

    def transport(self, node: str) -> LocalTransport:
        logins = self

        class Slow(LocalTransport):
            def open(self, argv: Sequence[str]) -> LocalChannel:  # noqa: ARG002  nothing is started
                logins.begun[node].append(time.monotonic())
                logins.gate.wait()
                logins.ended += 1
                raise Unreachable(node, "nobody there")

        return Slow(node)


def _plan(nodes: int, fanout: int) -> LaunchPlan:
    names = [Node(name=f"n{index}") for index in range(nodes)]
    inventory = Inventory(name="here", nodes=tuple(names), ssh=SshOptions(fanout=fanout))
    request = Request("ssh", Program("executable", ("true",)))
    return make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")


def _poller(tmp_path: Path, logins: Logins, *, nodes: int, fanout: int) -> Poller:
    plan = _plan(nodes, fanout)
    launcher = DirectLauncher(plan, lambda node: logins.transport(node.name))
    return Poller(RunFolder(tmp_path), plan, launcher)


def test_at_most_fanout_nodes_log_in_at_once_and_time_in_the_queue_does_not_count_as_silence(tmp_path: Path) -> None:
    logins = Logins()
    poller = _poller(tmp_path, logins, nodes=6, fanout=2)
    with poller.running():
        waiting = until(
            lambda: (
                len(found := [state for state in poller.states.values() if state.queued_s is not None]) == 4 and found
            ),
            awaited=lambda: f"four nodes to queue for a login slot: {logins.begun}",
        )
        assert len(logins.begun) == 2
        assert [state.silent_s() for state in waiting] == [state.silent_s() for state in waiting]
        logins.gate.set()
        until(lambda: len(logins.begun) == 6, awaited="the other nodes to log in")


def test_unreachable_node_is_polled_after_growing_pauses_that_no_two_nodes_share(tmp_path: Path) -> None:
    logins = Logins()
    logins.gate.set()
    with _poller(tmp_path, logins, nodes=2, fanout=2).running():
        until(
            lambda: all(len(logins.begun[node]) > 5 for node in ("n0", "n1")), awaited="six tries each", deadline_s=40
        )
    first, second = ([end - begin for begin, end in pairwise(times[:6])] for times in logins.begun.values())
    assert first[3] > first[0]
    assert second[3] > second[0]
    assert any(abs(pause - peers_pause) > 0.05 for pause, peers_pause in zip(first, second, strict=True))
