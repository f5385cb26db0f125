"""F21: Ctrl-C once and twice, and a terminal that is closed, in each phase of a launch: in good order, at once, without orch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.grounds.held_launch import HeldLaunch, held_launch
from tests.grounds.sshd import Farm
from tests.until import until

AT_ONCE_S = 20  # a busy machine needs some; a node that does not answer is waited for for 30 s and more


def _send(launch: HeldLaunch, number: signal.Signals) -> None:
    """As a terminal does, to the whole group."""
    os.killpg(launch.process.pid, number)


def _check_nothing_is_left(launch: HeldLaunch, farm: Farm) -> None:
    launch.open_gate()
    until(lambda: not farm.processes(), awaited=lambda: f"the nodes to be idle: {farm.processes()}", deadline_s=40)
    assert launch.orch.processes_of(launch.run) == []


@pytest.mark.parametrize("phase", ["connect", "push", "start"])
def test_ctrl_c_ends_a_launch_at_once_and_stops_what_had_started(phase: str, farm: Farm, tmp_path: Path) -> None:
    """Whatever it waits for on a node."""
    with held_launch(phase, farm, tmp_path) as launch:
        begun = time.monotonic()
        _send(launch, signal.SIGINT)
        _, said = launch.process.communicate(timeout=100)
        assert time.monotonic() - begun < AT_ONCE_S
        assert launch.process.returncode == 4, said
        assert "nothing was started" in said or "what had started was stopped" in said
        assert "Traceback" not in said
        assert launch.orch.status(launch.run)["state"] == "STOPPED"
        _check_nothing_is_left(launch, farm)
        assert "n1" not in launch.starts()


def test_second_ctrl_c_waits_for_nobody_and_says_what_may_be_left(farm: Farm, tmp_path: Path) -> None:
    with held_launch("stuck", farm, tmp_path) as launch:
        _send(launch, signal.SIGINT)
        until(launch.is_reconnected, awaited="orch to stop what had started, on a node that does not answer")
        begun = time.monotonic()
        _send(launch, signal.SIGINT)
        _, said = launch.process.communicate(timeout=100)
        assert time.monotonic() - begun < AT_ONCE_S
        assert launch.process.returncode == 4, said
        assert "interrupted again" in said
        assert f"orch stop {launch.run}" in said
        assert "Traceback" not in said
        assert launch.orch.records()[0]["state"] == "LOST"
        launch.open_gate()
        launch.orch("stop", launch.run)
        _check_nothing_is_left(launch, farm)


@pytest.mark.parametrize("phase", ["connect", "push", "start", "follow"])
def test_closed_terminal_detaches_orch_in_any_phase(phase: str, farm: Farm, tmp_path: Path) -> None:
    """The launch comes to its end, and the run is supervised; nobody is left watching."""
    with held_launch(phase, farm, tmp_path) as launch:
        _send(launch, signal.SIGHUP)
        launch.open_gate()
        launch.process.communicate(timeout=100)
        assert launch.process.returncode == (-signal.SIGHUP if phase == "follow" else 0)
        until(lambda: launch.starts() == ["n0", "n1"], awaited="both ranks")
        until(lambda: launch.orch.supervisor(launch.run), awaited="the supervisor")
        assert launch.orch.status(launch.run)["state"] == "RUNNING"
        launch.orch("stop", launch.run)
        _check_nothing_is_left(launch, farm)
