"""Copying files of a run: which nodes are read, and what remains of an interrupted copy."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import Progress, no_progress
from orchestrator.records.runs import home_store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.reports import copy as action
from orchestrator.usecases.reports.copy import copy
from tests.until import until

pytestmark = pytest.mark.processes


class SharedFolder(DirectLauncher):
    """A launcher with one folder for all nodes, as under Slurm."""

    def attempt_folders(
        self,
        attempt: int,
        nodes: Collection[str] | None = None,
        *,
        connect: bool = True,
    ) -> Sequence[AttemptFolder]:
        first = super().attempt_folders(attempt, ["n0"], connect=connect)[0]
        return [AttemptFolder(first.reach, first.attempt_dir, None)]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """The plan of a recorded run on two nodes that share a folder `res`."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    nodes = tuple(Node(name=name, python=sys.executable, workdir=str(tmp_path / "work")) for name in ("n0", "n1"))
    inventory = Inventory(name="here", transport="local", nodes=nodes)
    plan = make_plan(
        inventory, Request("ssh", Program("executable", ("true",))), run_id="here-20260102-030405-0abc", bundle="b"
    )
    record = RunRecord(plan.run_id, "ssh", RunState.DONE, "", request={}, inventory={}, code={}, versions={})
    home_store().create(record).write_plan(plan)
    attempt = Path(plan.attempt_dir(plan.head))
    for name in ("n0", "n1"):
        (attempt / name).mkdir(parents=True)
    (attempt.parent / "res").mkdir()
    (attempt.parent / "res" / "model").write_bytes(b"weights")
    return plan


def test_wanted_node_is_read_even_if_another_one_is_first_in_the_shared_folder(
    plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = SharedFolder(plan, lambda node: LocalTransport(node.name))
    monkeypatch.setattr(action, "launcher_for", lambda *_: launcher)
    [copied] = copy(plan.run_id, "res", tmp_path / "to", "n1", on_progress=no_progress)
    assert copied.node == "n1"
    assert (tmp_path / "to" / "res" / "model").read_bytes() == b"weights"


def test_only_the_wanted_nodes_are_connected(plan: LaunchPlan, tmp_path: Path) -> None:
    reports: list[Progress] = []
    copy(plan.run_id, "res", tmp_path / "to", "n1", on_progress=reports.append)
    assert {name for progress in reports for name in progress.names} == {"n1"}


def test_node_that_the_run_does_not_have_is_refused(plan: LaunchPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--node n2: the run has no such node"):
        copy(plan.run_id, "res", tmp_path / "to", "n2", on_progress=no_progress)


@pytest.mark.parametrize("path", ["res", "res/model"])
def test_nothing_remains_of_a_copy_that_ctrl_c_interrupts(plan: LaunchPlan, tmp_path: Path, path: str) -> None:
    is_checked, is_interrupted = threading.Event(), threading.Event()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background

    def interrupt(progress: Progress) -> None:
        if progress.work == "copying" and progress.share > 0 and not is_interrupted.is_set():
            is_interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            is_checked.wait()

    try:
        with pytest.raises(KeyboardInterrupt):
            copy(plan.run_id, path, tmp_path / "to", None, on_progress=interrupt)
        assert list((tmp_path / "to").iterdir()) == []
    finally:
        signal.signal(signal.SIGINT, handler)
        is_checked.set()
        until(lambda: not any(thread.name == "node" for thread in threading.enumerate()), awaited="the copying thread")
