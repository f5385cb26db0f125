"""F8: the process that owns a run is killed with SIGKILL in each phase of the launch: the run is recorded all the same, and nothing is launched twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.held_launch import HeldLaunch, held_launch
from tests.grounds.sshd import Farm
from tests.until import until

PHASES = ["push", "follow", *(pytest.param(phase, marks=pytest.mark.extended) for phase in ("connect", "start"))]
NEVER_STARTED = "no trace of the run on n[0-1]: never started"


@contextmanager
def _killed(phase: str, farm: Farm, folder: Path) -> Iterator[HeldLaunch]:
    """A launch that was killed in that phase; n1 continues by itself."""
    with held_launch(phase, farm, folder) as launch:
        launch.kill_owner()
        assert launch.process.returncode == 4
        launch.open_gate()
        yield launch


def _check_nothing_is_left(orch: Orch, farm: Farm, run: str) -> None:
    assert orch.processes_of(run) == []
    until(lambda: not farm.processes(), awaited="orch's own connections to end")
    assert [record["id"] for record in orch.records()] == [run]


@pytest.mark.parametrize("phase", PHASES)
def test_run_whose_launch_was_killed_in_any_phase_has_a_status_and_can_be_stopped(
    phase: str, farm: Farm, tmp_path: Path
) -> None:
    with _killed(phase, farm, tmp_path) as launch:
        orch, run = launch.orch, launch.run
        if phase in ("connect", "push"):
            assert NEVER_STARTED in orch("status", run, code=5).stdout
        else:
            until(lambda: launch.starts() == ["n0", "n1"], awaited="the ranks, which start without orch")
            assert orch.status(run)["state"] == "RUNNING"
        orch("stop", run)
        assert orch.status(run)["state"] == "STOPPED"
        assert launch.starts() == ([] if phase in ("connect", "push") else ["n0", "n1"])
        _check_nothing_is_left(orch, farm, run)


@pytest.mark.extended
@pytest.mark.parametrize("phase", PHASES)
def test_attach_supervises_what_a_killed_launch_had_started_and_launches_nothing(
    phase: str, farm: Farm, tmp_path: Path
) -> None:
    with _killed(phase, farm, tmp_path) as launch:
        orch, run = launch.orch, launch.run
        if phase in ("connect", "push"):
            assert NEVER_STARTED in orch("attach", run, code=1).stderr
            assert launch.starts() == []
        else:
            until(lambda: launch.starts() == ["n0", "n1"], awaited="the ranks")
            agents = [orch.agent_pid(run, node) for node in ("n0", "n1")]
            orch("attach", "--detach", run)
            assert "has a supervisor" in orch("attach", run, code=2).stderr
            assert orch.status(run)["state"] == "RUNNING"
            assert [orch.agent_pid(run, node) for node in ("n0", "n1")] == agents
            orch("stop", run)
            assert launch.starts() == ["n0", "n1"]
        _check_nothing_is_left(orch, farm, run)
