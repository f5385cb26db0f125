"""A node that answers too late: a new connection is made, and the old one leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from orchestrator.endpoint import client
from orchestrator.endpoint.client import Heartbeat
from orchestrator.errors import Unreachable
from orchestrator.inventory import model
from orchestrator.launchers import direct_launcher
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from tests.grounds.sshd import Farm
from tests.until import until

TIMES = 4


def _resource_counts(farm: Farm) -> tuple[int, int, int]:
    """The resources of connections: files and threads of this process, processes of sshd."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(farm.connections())


def _is_within(counts: tuple[int, int, int], limits: tuple[int, int, int]) -> bool:
    return all(count <= limit for count, limit in zip(counts, limits, strict=True))


def test_a_timed_out_connection_is_closed_before_the_next(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = model.load(farm.inventory(tmp_path, nodes=1))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="farm-20260102-030405-0abc", bundle="0" * 32)
    monkeypatch.setattr(client, "HEARTBEAT_ANSWER_S", 0.1)
    farm.drop_connections()  # those of earlier tests, which may still be closing
    launcher = direct_launcher(plan)
    try:
        launcher.reach(plan.head)
        before = _resource_counts(farm)
        for _ in range(TIMES):
            node = launcher.reach(plan.head)
            stopped = farm.processes()
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            with pytest.raises(Unreachable, match="no answer"):
                node.heartbeat(plan.attempt_dir(plan.head), plan.head.name, Heartbeat(None, (), 0.0))
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        launcher.reach(plan.head)
        until(
            lambda: _is_within(_resource_counts(farm), before),
            awaited=lambda: f"{_resource_counts(farm)} to be within {before}",
        )
    finally:
        launcher.close()
