"""A login node whose connection is closed while one of Slurm's commands runs there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.slurm.login_node import LoginNode
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalChannel, LocalTransport
from tests.until import until

pytestmark = pytest.mark.processes


class CountedTransport(LocalTransport):
    """A connection to this machine that counts the endpoints that were started."""

    count = 0

    def open(self, argv: Sequence[str]) -> LocalChannel:
        self.count += 1
        return super().open(argv)


def test_closed_connection_stays_closed_while_a_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when `orch status` no longer waits for a slow squeue."""
    monkeypatch.setenv("HOME", str(tmp_path))
    inventory = Inventory(name="demo", nodes=(Node(name="n0", python=sys.executable),))
    request = Request("slurm", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home="/home/u")
    transport = CountedTransport("login0")
    host = LoginNode(plan.head, lambda _node: transport)
    with ThreadPoolExecutor(1) as executor:
        wait = f"touch {tmp_path}/begun; until [ -e {tmp_path}/enough ]; do sleep 0.05; done"
        running = executor.submit(host.run, ["sh", "-c", wait])
        until((tmp_path / "begun").exists, awaited="the command to begin")
        host.close()
        with pytest.raises(Unreachable):
            running.result(timeout=20)
        (tmp_path / "enough").touch()  # the command itself is not ended by a lost connection
    assert transport.count == 1
