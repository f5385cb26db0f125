"""`orch stop --save` while a node is lost, and while its connections are."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.until import until

pytestmark = pytest.mark.slow

SAVES = (
    "sh",
    "-c",
    "trap 'echo saving; until [ -e ../../../end ]; do sleep 0.1; done; exit 99' USR2; echo up; while :; do sleep 0.1; done",
)


@pytest.fixture
def orch(hosts: Hosts, tmp_path: Path) -> Orch:
    """orch on the controller, beside an inventory.yaml of three hosts."""
    hosts.inventory(tmp_path)
    return hosts.orch(tmp_path)


def _started(orch: Orch, hosts: Hosts) -> str:
    run = orch("ssh-launch", "--detach", "--no-check", "--", *SAVES).stdout.strip()
    until(lambda: hosts.outputs(orch, run) == ["up\n"] * 3, awaited="three ranks")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    return run


def test_host_that_is_lost_while_it_saves_is_named_and_the_others_are_ended(orch: Orch, hosts: Hosts) -> None:
    run = _started(orch, hosts)
    with orch.start("stop", run, "--save") as stopping:
        until(lambda: hosts.outputs(orch, run) == ["up\nsaving\n"] * 3, awaited="the saves")
        hosts[1].kill()
        _, errors = stopping.communicate(timeout=110)
    assert stopping.returncode == 4
    assert "h1: no answer yet, while most other nodes have answered; its ranks may not have saved" in errors
    assert f"run {run} is not known to be over everywhere" in errors
    assert orch.recorded(run) in {"STOPPED", "FAILED"}


def test_agents_end_the_ranks_after_the_grace_without_a_controller(orch: Orch, hosts: Hosts) -> None:
    run = _started(orch, hosts)
    with orch.start("stop", run, "--save", "--grace", "5s") as stopping:
        until(lambda: hosts.outputs(orch, run) == ["up\nsaving\n"] * 3, awaited="the saves")
        orch.kill_supervisor(run)
        stopping.send_signal(signal.SIGKILL)
    until(lambda: orch.status(run)["state"] == "STOPPED", awaited=lambda: orch("logs", run).stdout)
    log = orch("logs", run, "--stream", "event").stdout
    assert log.count("the ranks are no longer waited for: the time for the save is over") == 3
