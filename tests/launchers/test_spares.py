"""A spare node prepares a restart before it takes part: it has the code, and its ranks are forked from a process that waits there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.system.machine import is_alive
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport
from tests.launchers.starting import push_and_start
from tests.paths import ROOT
from tests.until import until

pytestmark = pytest.mark.processes

RUN = "here-20260102-030405-0abc"
PROGRAM = f"""
import os, signal, sys
if "ORCH_WARM" in os.environ:
    sys.path.insert(0, {str(ROOT)!r})
    from trainer.runtime import warm
    warm.MODULES = ()
    warm.become_rank(int(os.environ["ORCH_WARM"]))
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "ORCH_NODE", "ORCH_NODE_RANK", "ORCH_ATTEMPT", "FOUND")), flush=True)
signal.pause()
"""


class Run:
    """A run on n0 and n1, with s0 as a spare node."""

    def __init__(self, root: Path, folders: dict[str, str]) -> None:
        self.root, self.folders = root, folders
        nodes = tuple(
            Node(name=name, python=sys.executable, workdir=str(root / folder), tags=("spare",) * (name == "s0"))
            for name, folder in folders.items()
        )
        inventory = Inventory(name="here", transport="local", nodes=nodes)
        self.bundle = bundles.build(trainer=False, code=None)
        request = Request("ssh", Program("python", ("-c", PROGRAM)), max_retries=1)
        plan = make_plan(inventory, request, run_id=RUN, bundle=self.bundle.digest)
        self.launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name))

    def file(self, attempt: int, node: str, name: str) -> Path:
        return self.root / self.folders[node] / "runs" / RUN / f"attempt-{attempt}" / node / name

    def start(self, plan: LaunchPlan) -> None:
        """Start an attempt, and wait for its ranks; a variable was discovered on each node, as by the check of a launch."""
        push_and_start(self.launcher, self.bundle, plan, defaults={n.name: {"FOUND": "1"} for n in plan.nodes})
        files = [self.file(plan.attempt, node.name, f"rank-{rank}.out") for rank, node in enumerate(plan.nodes)]
        until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), awaited="the ranks")

    def stand_by(self) -> None:
        """Prepare the spare node."""
        plan = self.launcher.plan
        agent = json.loads(self.file(1, "n0", "agent.json").read_text())
        assert self.launcher.send_code(plan.spares[0], self.bundle)
        self.launcher.stand_by("s0", agent["rendezvous"])
        log = self.file(1, "s0", "agent.log")
        until(lambda: self.standby().get("ready"), awaited=lambda: f"the imports: {log.read_text()}")

    def standby(self) -> dict[str, object]:
        record = self.file(1, "s0", "standby.json")
        return json.loads(record.read_text()) if record.exists() else {}


@pytest.fixture(params=[("a", "b", "c"), ("a", "a", "a")], ids=["apart", "shared"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(tmp_path, dict(zip(("n0", "n1", "s0"), request.param, strict=True)))
    with closing(run.launcher) as launcher:
        yield run
        assert launcher.stop(None, grace_s=0.0) == []


def test_ranks_of_a_spare_node_are_forked_from_the_process_that_waits_there(run: Run) -> None:
    plan = run.launcher.plan
    run.start(plan)
    run.stand_by()
    (sent,) = (run.root / run.folders["s0"] / "bundles").iterdir()
    inode = sent.stat().st_ino
    assert run.launcher.stop(None, grace_s=0.0) == []
    n0, spare = plan.head, replace(plan.spares[0], node_rank=1, ranks=range(1, 2))
    restarted = replace(plan, attempt=2, nodes=(n0, spare), spares=(), replaced=plan.nodes[1:], earlier=(("n0", "n1"),))
    restarted = replace(restarted, is_shared=run.launcher.plan.is_shared)
    run.start(restarted)
    assert run.file(2, "s0", "rank-1.out").read_text() == "1 2 s0 1 2 1\n"
    texts = run.file(2, "s0", "events.jsonl").read_text()
    assert "the ranks are forked from a process that has imported the trainer" in texts, texts
    assert not run.standby()
    assert sent.stat().st_ino == inode


def test_process_that_waits_on_a_spare_node_is_ended(run: Run) -> None:
    run.start(run.launcher.plan)
    run.stand_by()
    record = run.standby()
    run.launcher.end_standby(run.launcher.plan.spares[0])
    assert not is_alive(record)
    assert not run.standby()


def test_spare_node_that_does_not_see_the_shared_folder_is_not_prepared(tmp_path: Path) -> None:
    run = Run(tmp_path, {"n0": "a", "n1": "a", "s0": "b"})
    with closing(run.launcher) as launcher:
        push_and_start(launcher, run.bundle)
        assert not launcher.send_code(launcher.plan.spares[0], run.bundle)
        assert not os.path.lexists(tmp_path / "b")
        assert launcher.stop(None, grace_s=0.0) == []
