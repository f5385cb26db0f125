"""F21: Ctrl-C once, Ctrl-C twice and a closed terminal in each phase of a launch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.grounds.held_launch import HeldLaunch, held_launch
from tests.grounds.sshd import Farm
from tests.until import until

AT_ONCE_S = 20  # enough for a busy machine; the timeouts for a node that does not answer are 30 s and more


def _send(launch: HeldLaunch, number: signal.Signals) -> None:
    """Send a signal to the whole process group, as a terminal does."""
    os.killpg(launch.process.pid, number)


def _check_nothing_is_left(launch: HeldLaunch, farm: Farm) -> None:
    launch.open_gate()
    until(lambda: not farm.processes(), awaited=lambda: f"the nodes to be idle: {farm.processes()}")
    assert launch.orch.processes_of(launch.run) == []


@pytest.mark.parametrize(
    "phase",
    ["start", pytest.param("connect", marks=pytest.mark.extended), pytest.param("push", marks=pytest.mark.extended)],
)
def test_ctrl_c_ends_a_launch_at_once_and_stops_what_had_started(phase: str, farm: Farm, tmp_path: Path) -> None:
    """In any phase in which it waits for a node."""
    with held_launch(phase, farm, tmp_path) as launch:
        begun = time.monotonic()
        _send(launch, signal.SIGINT)
        _, stderr = launch.process.communicate(timeout=100)
        assert time.monotonic() - begun < AT_ONCE_S
        assert launch.process.returncode == 4, stderr
        assert "nothing was started" in stderr or "what had started was stopped" in stderr
        assert "Traceback" not in stderr
        assert launch.orch.status(launch.run)["state"] == "STOPPED"
        _check_nothing_is_left(launch, farm)
        assert "n1" not in launch.starts()


def test_second_ctrl_c_waits_for_no_node_and_names_the_run_that_may_be_left(farm: Farm, tmp_path: Path) -> None:
    with held_launch("stuck", farm, tmp_path) as launch:
        _send(launch, signal.SIGINT)
        until(launch.is_reconnected, awaited="orch to stop what had started, on a node that does not answer")
        begun = time.monotonic()
        _send(launch, signal.SIGINT)
        _, stderr = launch.process.communicate(timeout=100)
        assert time.monotonic() - begun < AT_ONCE_S
        assert launch.process.returncode == 4, stderr
        assert "interrupted a second time" in stderr
        assert f"orch stop {launch.run}" in stderr
        assert "Traceback" not in stderr
        assert launch.orch.records()[0]["state"] == "LOST"
        launch.open_gate()
        launch.orch("stop", launch.run)
        _check_nothing_is_left(launch, farm)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("connect", signal.SIGKILL),
        pytest.param("push", signal.SIGHUP, marks=pytest.mark.extended),
        ("follow", signal.SIGHUP),
    ],
)
def test_closed_terminal_detaches_orch_in_any_phase(
    phase: str, number: signal.Signals, farm: Farm, tmp_path: Path
) -> None:
    """The launch completes and the run is supervised; only the watching orch ends."""
    farm.drop_connections()  # those of earlier tests, which may still be closing
    with held_launch(phase, farm, tmp_path) as launch:
        sessions = farm.connections()
        _send(launch, number)
        launch.open_gate()
        launch.process.communicate(timeout=100)
        assert launch.process.returncode == -number
        until(lambda: launch.starts() == ["n0", "n1"], awaited="both ranks")
        until(lambda: launch.orch.supervisor(launch.run), awaited="the supervisor")
        until(launch.has_heartbeats, awaited="heartbeats to both nodes")
        assert sessions.keys() == farm.connections().keys(), "one login per node, before and after the launch"
        assert len(launch.endpoints()) == 2
        assert launch.orch.status(launch.run)["state"] == "RUNNING"
        launch.orch("stop", launch.run)
        _check_nothing_is_left(launch, farm)


def test_eight_nodes_have_one_connection_each_in_launch_and_supervision_and_after_attach(
    farm: Farm, tmp_path: Path
) -> None:
    """A terminal that is closed changes nothing; a reader of the logs opens another one while it reads."""
    farm.drop_connections()
    addresses = farm.addresses(8)
    with held_launch("start", farm, tmp_path, nodes=8) as launch:
        sessions = farm.connections().keys()
        assert farm.established() == dict.fromkeys(addresses, 1)
        _send(launch, signal.SIGKILL)
        launch.open_gate()
        launch.process.communicate(timeout=100)
        until(lambda: len(launch.starts()) == 8, awaited="all ranks")
        until(launch.has_heartbeats, awaited="heartbeats to all nodes")
        assert farm.connections().keys() == sessions
        assert farm.established() == dict.fromkeys(addresses, 1)
        assert len(launch.endpoints()) == 8
        with launch.orch.start("logs", "-f", launch.run) as reader:
            until(lambda: farm.established() == dict.fromkeys(addresses, 2), awaited="the reader")
            reader.terminate()
            reader.communicate(timeout=100)
        until(lambda: farm.connections().keys() == sessions, awaited="the reader's connections to end")
        launch.orch.kill_supervisor(launch.run)
        until(lambda: not farm.established(), awaited="its connections to end")
        launch.orch("attach", "--detach", launch.run)
        until(lambda: farm.established() == dict.fromkeys(addresses, 1), awaited="the other supervisor")
        launch.orch("stop", launch.run)
        _check_nothing_is_left(launch, farm)
