"""What a submission from this machine does at the same time, and what it does not."""

from __future__ import annotations

import shutil
import threading

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.slurm import submit as slurm_submit
from orchestrator.launchers.slurm.host import ThisMachine
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request

pytestmark = pytest.mark.processes


def test_job_is_submitted_when_submitit_is_loaded_and_not_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules import each other: of two threads that load them, Python ends one with a deadlock."""
    order: list[str] = []
    submitting = threading.Event()

    def load() -> None:
        submitting.wait(0.3)
        order.append("loaded")

    def submit(_plan: LaunchPlan) -> str:
        order.append("submitted")
        submitting.set()
        return "7"

    monkeypatch.setattr(slurm_submit, "load", load)
    monkeypatch.setattr(slurm_submit, "submit", submit)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    inventory = Inventory(name="demo", nodes=(Node(name="n0"),))
    plan = make_plan(
        inventory, Request("slurm", Program("trainer", ())), run_id="demo-20260102-030405-0abc", bundle="b"
    )
    host = ThisMachine(plan.head)
    host.require()
    assert host.submit(plan) == "7"
    host.close()
    assert order == ["loaded", "submitted"]
