"""Launches that fail or are stopped half way: what had started is ended, or it is said that it may be left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.commands import launch as command
from orchestrator.commands.request import Words
from orchestrator.errors import LaunchError
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan import LaunchPlan, NodePlan
from orchestrator.transports.base import Unreachable
from orchestrator.transports.local import LocalTransport
from tests.grounds.cli import Orch
from tests.until import until

SLEEPERS = ("sh", "-c", "echo up; exec sleep 1000")


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes on this machine, each with a Python of its own."""
    for name in ("n0", "n1"):
        (tmp_path / name).symlink_to(sys.executable)
    nodes = "".join(f"  - {{name: {name}, python: {tmp_path / name}}}\n" for name in ("n0", "n1"))
    (tmp_path / "inventory.yaml").write_text(
        f"name: here\naccelerator: cpu\ntransport: local\ndefaults: {{workdir: {tmp_path}/work}}\nnodes:\n{nodes}"
    )
    return Orch(tmp_path)


class Loses(DirectLauncher):
    """Its node n1 starts its agent and is out of reach from then on: without its Python nothing can be asked there."""

    def _start_agent(self, node: NodePlan, found: str) -> None:
        super()._start_agent(node, found)
        if node.name == "n1":
            self._endpoints[node.name].close()
            Path(node.python).unlink()
            raise Unreachable(node.name, "no answer for 60 s")


def _launched(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> LaunchError:
    def launcher_for(plan: LaunchPlan) -> DirectLauncher:
        return Loses(plan, lambda node: LocalTransport(node.name))

    monkeypatch.setattr(command, "launcher_for", launcher_for)
    monkeypatch.setenv("ORCH_HOME", str(orch.home))
    monkeypatch.chdir(orch.cwd)
    with pytest.raises(LaunchError) as caught:
        command.launch(Words("ssh", None, None, None, None, (), SLEEPERS), dry_run=False, follow=False)
    return caught.value


def test_failed_launch_that_could_not_be_undone_is_lost_until_it_is_stopped(
    orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _launched(orch, monkeypatch)
    assert "n1: no answer for 60 s" in str(error)
    assert f"not everything could be stopped:\n  n1: no Python: {orch.cwd}/n1 not found" in str(error)
    [record] = orch.records()
    assert record["state"] == "LOST"
    assert record["id"] in error.hint
    assert orch.processes_of(record["id"])

    assert f"n1: no Python: {orch.cwd}/n1 not found" in orch("stop", code=4).stderr
    assert orch.records()[0]["state"] == "LOST"

    (orch.cwd / "n1").symlink_to(sys.executable)
    orch("stop")
    assert orch.records()[0]["state"] == "STOPPED"
    until(lambda: not orch.processes_of(record["id"]), what="the ranks of n1 to be gone")


def test_stop_of_a_run_that_is_over_says_which_nodes_it_could_not_ask(orch: Orch) -> None:
    orch("ssh-launch", "--", "true")
    (orch.cwd / "n1").unlink()
    done = orch("stop", code=4)
    assert f"n1: no Python: {orch.cwd}/n1 not found" in done.stderr
    assert orch.records()[0]["state"] == "DONE"
