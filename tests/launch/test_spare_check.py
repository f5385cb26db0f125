"""Spare nodes that would not see the checkpoints are named at the launch, and left out."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.endpoint.access import Destination
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodeError, NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launch import spare_check
from orchestrator.launch.spare_check import begin_logins, check_spares, require_visible_checkpoints
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.resolve import resolve
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport

pytestmark = pytest.mark.processes

RUN = "here-20260102-030405-0abc"


def _node(tmp_path: Path, name: str, folder: str) -> Node:
    tags = ("spare",) if name.startswith("s") else ()
    return Node(name=name, python=sys.executable, workdir=str(tmp_path / folder), tags=tags)


def _checked(tmp_path: Path, *folders: tuple[str, str], out: str = "") -> tuple[list[str], list[str]]:
    """The warnings of a launch on nodes with these working folders, and the spare nodes that it keeps."""
    nodes = tuple(_node(tmp_path, name, folder) for name, folder in folders)
    bundle = bundles.build(trainer=False, code=None)
    request = Request("ssh", Program("trainer", (f"out={out}",) if out else ()), max_retries=1)
    inventory = Inventory(name="here", transport="local", nodes=nodes)
    plan = make_plan(inventory, request, run_id=RUN, bundle=bundle.digest)

    def transport(node: Destination) -> LocalTransport:
        if node.name == "s-off":
            raise Unreachable(node.name, "no route to host")
        return LocalTransport(node.name)

    with closing(DirectLauncher(plan, transport)) as launcher:
        launcher.connect(plan)
        begin_logins(launcher, plan.spares)
        plan = resolve(plan, launcher.push(plan, bundle))
        found = check_spares(launcher, plan)
        return list(found.warnings), [node.name for node in resolve(plan, found).spares]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_check, "WAIT_S", 60.0)


def test_spare_node_without_the_shared_folder_is_left_out(tmp_path: Path) -> None:
    folders = ("n0", "w"), ("n1", "w"), ("s0", "elsewhere"), ("s1", "w"), ("s-off", "w")
    warnings, spares = _checked(tmp_path, *folders)
    assert warnings == [
        f"the spare node s0 is left out: it does not share the folder of the run, {tmp_path}/w/runs/{RUN}",
        "the spare node s-off could not be checked: no route to host",
    ]
    assert spares == ["s1", "s-off"]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("refused", [{"spares"}, {"spares", "nodes"}])
def test_launch_without_a_thread_for_the_check_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: set[str]
) -> None:
    start = threading.Thread.start

    def may_start(self: threading.Thread) -> None:
        if self.name in refused:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", may_start)
    warnings, spares = _checked(tmp_path, ("n0", "w"), ("n1", "w"), ("s0", "elsewhere"), ("s1", "w"))
    left_out = f"the spare node s0 is left out: it does not share the folder of the run, {tmp_path}/w/runs/{RUN}"
    assert (warnings, spares) == ([left_out], ["s1"])


def test_spare_node_that_does_not_see_out_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes have working folders apart, and rank 0 saves to another disk."""
    _blind(monkeypatch)
    out = tmp_path / "disk" / "out"
    out.parent.mkdir()
    warnings, spares = _checked(tmp_path, ("n0", "a"), ("n1", "b"), ("s0", "c"), ("s1", "d"), out=str(out))
    assert warnings == [f"the spare node s0 is left out: it does not see what n0 writes below out={out}"]
    assert spares == ["s1"]
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("new", ["s0", "s1"])
def test_node_of_a_restart_that_does_not_see_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    """As rank 0, a spare node that was not checked at the launch would begin at step 0."""
    _blind(monkeypatch)
    out = tmp_path / "disk" / "out"
    out.parent.mkdir()
    nodes = tuple(_node(tmp_path, name, name) for name in ("n0", "n1", "s0", "s1"))
    inventory = Inventory(name="here", transport="local", nodes=nodes)
    request = Request("ssh", Program("trainer", (f"out={out}",)), max_retries=1)
    plan = make_plan(inventory, request, run_id=RUN, bundle="b")
    (spare,) = (node for node in plan.spares if node.name == new)
    restarted = replace(plan, attempt=2, nodes=(spare, plan.nodes[1]), earlier=(("n0", "n1"),))
    with closing(DirectLauncher(plan, lambda node: LocalTransport(node.name))) as launcher:
        if new == "s0":
            with pytest.raises(NodesError, match=f"s0: it does not see what n1 writes below out={out}"):
                require_visible_checkpoints(launcher, restarted)
        else:
            require_visible_checkpoints(launcher, restarted)
    assert list(out.parent.iterdir()) == []


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let s0 see no file of another node."""
    find = Endpoint.find_marker

    def blind(self: Endpoint, path: str) -> str:
        if self.node == "s0":
            raise NodeError(self.node, f"{path}: no such file or directory")
        return find(self, path)

    monkeypatch.setattr(Endpoint, "find_marker", blind)
