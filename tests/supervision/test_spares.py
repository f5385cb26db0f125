"""The spare nodes of a run are prepared while it trains, and again over each new connection."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import NodePlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.supervision import spares as module
from orchestrator.supervision.spares import Spares
from orchestrator.supervision.supervisor import Supervisor
from tests.supervision.attempts import StubAttempts
from tests.until import until

RENDEZVOUS = "127.0.0.1 29500 host"


class Connection:
    """To a spare node, which answers."""

    def __init__(self) -> None:
        self.connected, self.requests = True, 0
        self.answers = True

    def clock_ahead(self, *, wait_s: float) -> None:
        self.requests += 1
        if not self.answers:
            self.connected = False
            raise Unreachable("s0", f"no answer for {wait_s:g} s")


class Launcher(DirectLauncher):
    """Reaches s0, and not s1."""

    def __init__(self, tmp_path: Path) -> None:
        nodes = [Node(name=name, tags=("spare",) * (name[0] == "s")) for name in ("n0", "s0", "s1", "s2")]
        request = Request("ssh", Program("trainer", ()), max_retries=1)
        inventory = Inventory(name="here", nodes=tuple(nodes))
        plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
        super().__init__(plan, cast("Any", None))
        self.folder = RunFolder(tmp_path)
        self.folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
        self.opened: list[Connection] = []
        self.prepared: list[tuple[str, str]] = []
        self.rendezvous: str | None = None

    def connected_endpoint(self, node: NodePlan) -> Endpoint | None:
        usable = node.name == "s0" and bool(self.opened) and self.opened[-1].connected
        return cast("Endpoint", self.opened[-1]) if usable else None

    def reach(self, node: NodePlan) -> Endpoint:
        if node.name == "s1":
            raise Unreachable(node.name, "no route to host")
        if node.name == "s0" and self.connected_endpoint(node) is None:
            self.opened.append(Connection())
        return cast("Endpoint", self.opened[-1])

    def stand_by(self, name: str, rendezvous: str) -> None:
        self.prepared.append((name, rendezvous))


def test_spare_nodes_are_prepared_once_the_nodes_are_and_for_each_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    launcher = Launcher(tmp_path)
    launcher.opened.append(Connection())  # from the check at the launch
    spares = Spares(launcher.folder, launcher, lambda: launcher.rendezvous)
    with spares.kept(StubAttempts(send_code=lambda node: node.name != "s2")):  # s2 does not see the folder of the run
        until(lambda: launcher.opened[0].requests > 2, awaited="requests that keep the connection")
        assert not launcher.prepared
        launcher.rendezvous = RENDEZVOUS
        until(lambda: launcher.prepared, awaited="the preparation")
        before = launcher.opened[0].requests
        until(lambda: launcher.opened[0].requests > before + 2, awaited="requests that keep what waits")
        assert launcher.prepared == [("s0", RENDEZVOUS)]
        launcher.opened[0].connected = False
        until(lambda: len(launcher.prepared) == 2, awaited="the preparation over the next connection")
        launcher.opened[1].answers = False
        until(lambda: len(launcher.prepared) == 3, deadline_s=5.0, awaited="that after a request without an answer")
        assert [node.name for node in spares.nodes] == ["s0"]
    events = (tmp_path / "events.jsonl").read_text()
    assert "a restart is not prepared on a spare node: s1: no route to host" in events


def test_run_is_supervised_if_the_user_may_have_no_thread_for_a_spare_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    launcher = Launcher(tmp_path)
    with Spares(launcher.folder, launcher, lambda: RENDEZVOUS).kept(StubAttempts()):
        assert not launcher.opened
    assert "on a spare node: s0: can't start new thread" in (tmp_path / "events.jsonl").read_text()


def test_spare_nodes_are_left_alone_if_ranks_are_not_kept_warm(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    launcher.rendezvous = RENDEZVOUS
    spares = Spares(launcher.folder, launcher, lambda: pytest.fail("a thread has started"))
    with spares.kept(None):
        assert not spares.nodes
    assert not launcher.opened


def test_what_waits_is_ended_on_the_spare_nodes_that_were_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher(tmp_path)
    launcher.folder.write_plan(launcher.plan)
    supervisor, ended = Supervisor(launcher.folder, launcher), list[str]()
    monkeypatch.setattr(launcher, "end_standby", lambda node: ended.append(node.name))
    prepared = supervisor._spares.prepared  # no run is supervised
    prepared.update(dict.fromkeys(("s0", "s2"), cast("Endpoint", Connection())))
    supervisor._end_standbys((), excluded={"s0"})
    assert ended == ["s2"]
