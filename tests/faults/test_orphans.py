"""No orphans: whatever gets SIGKILL, in any order, no process of a run is alive once the run has ended or is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.launchers import launcher_for
from orchestrator.records.store import Store
from tests.grounds import keeper
from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.marked import Process, guards_of, processes_of, still_alive
from tests.grounds.sshd import Farm
from tests.until import until

# A child, a daemon, a daemon with a child that ignores SIGTERM, one that stopped itself, one with another environment, and the rank.
TREE = """
sleep 1001 &
(setsid sleep 1002 &)
(setsid sh -c 'trap "" TERM; sleep 1003 & wait; wait' &)
(sh -c 'kill -STOP $$' &)
env -i sleep 1004 &
exec sleep 1005
"""
TREE_SIZE = 7  # the daemon that ignores SIGTERM is two
ORDERS = [
    "rank",
    "guard agent rank",
    "connection guard agent",
    *(
        pytest.param(order, marks=pytest.mark.extended)
        for order in ("agent", "guard", "guard agent", "agent guard", "rank agent guard")
    ),
]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Orch]:
    base = {"name": "here", "accelerator": "cpu", "devices": 1, "transport": "local"}
    base |= {"defaults": {"workdir": str(tmp_path / ".work"), "python": sys.executable}, "nodes": [{"name": "n0"}]}
    write_inventory(tmp_path / "inventory.yaml", base, {})
    orch = Orch(tmp_path)
    yield orch
    for pid, _ in [process for run in _runs(orch) for process in processes_of(run)]:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    farm.inventory(tmp_path, nodes=1)
    return Orch(tmp_path)


@pytest.mark.parametrize("order", ORDERS)
def test_stop_leaves_nothing_of_a_run_whatever_was_killed_before(orch: Orch, farm: Farm, order: str) -> None:
    run, run_processes = _start(orch)
    _kill(order, run, farm)
    _stop(orch, run, grace_s=0.3)
    _assert_gone(run_processes)
    assert not processes_of(run)
    until(lambda: not farm.processes(), awaited=lambda: f"the farm to be empty: {farm.processes()}")


def test_orch_stop_ends_a_run_of_this_machine_whose_guard_and_agent_were_killed(local: Orch) -> None:
    run, run_processes = _start(local)
    _kill("guard agent", run, None)
    assert still_alive(run_processes), "without orphans the test proves nothing"
    local("stop", run)
    _assert_gone(run_processes)
    assert local.status(run)["state"] == "FAILED"


def test_orch_killed_in_the_middle_of_a_launch_leaves_nothing_that_stop_cannot_end(local: Orch, tmp_path: Path) -> None:
    """The agent's process runs, its record does not exist yet: an agent that stop has ended must not start ranks afterwards."""
    gate = tmp_path / ".gate"
    slow = tmp_path / ".slow-python"
    slow.write_text(f"#!{sys.executable}\n{SLOW_PYTHON.format(gate=str(gate), python=sys.executable)}")
    slow.chmod(0o755)
    text = (tmp_path / "inventory.yaml").read_text("utf-8").replace(f"python: {sys.executable}", f"python: {slow}")
    (tmp_path / "inventory.yaml").write_text(text, "utf-8")
    with local.start("ssh-launch", "--detach", "--", "sleep", "1000") as launch:
        (run,) = until(lambda: _runs(local), awaited="the run's record")
        until(lambda: processes_of(run), awaited="the agent's process")
        [owner] = local.supervisors()
        os.kill(owner, signal.SIGKILL)
        launch.communicate()
    _stop(local, run, grace_s=5)
    gate.touch()
    assert not processes_of(run)
    assert not list(tmp_path.glob(".work/runs/*/attempt-1/n0/agent.json"))


def test_stop_ends_a_run_whose_folder_is_gone_though_its_state_is_unknown(local: Orch) -> None:
    run, run_processes = _start(local)
    local.kill_supervisor(run)  # it would record the run as FAILED
    folder = _without_folder(local, run)
    done = local("stop", run, code=5)
    assert "was ended" in done.stderr
    _assert_gone(run_processes)
    done = local("logs", run, "--tail", "3", code=4)
    assert f"is gone, as is its folder: {folder}/attempt-1/n0" in done.stderr
    assert not done.stdout


def test_stop_reports_what_the_owner_records_of_a_run_whose_folder_is_gone(local: Orch) -> None:
    run, run_processes = _start(local)
    _without_folder(local, run)
    done = local("stop", run)
    assert f"run {run} is FAILED: no trace of the run on n0" in done.stderr
    _assert_gone(run_processes)
    assert local.recorded(run) == "FAILED"


def _without_folder(local: Orch, run: str) -> Path:
    """Remove the folder of the run on its node; returns its path."""
    (folder,) = local.cwd.glob(f".work/runs/{run}")

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)  # the agents write into it
        return not folder.exists()

    until(is_gone, awaited="the folder to be gone")
    return folder


SLOW_PYTHON = """
import os, sys, time
while sys.argv[-2:-1] == ["--rendezvous"] and not os.path.exists({gate!r}):
    time.sleep(0.02)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def test_killed_connections_leave_the_run_alone(orch: Orch, farm: Farm) -> None:
    run, run_processes = _start(orch)
    farm.drop_connections()
    assert still_alive(run_processes) == run_processes
    _stop(orch, run, grace_s=0.3)
    _assert_gone(run_processes)


def _runs(orch: Orch) -> list[str]:
    return [folder.path.name for folder in Store(orch.home).all()]


def _start(orch: Orch) -> tuple[str, set[Process]]:
    """Start a run of one rank with all kinds of descendants; returns its id and all its processes."""
    (orch.cwd / "tree.sh").write_text(TREE)
    run = orch("ssh-launch", "--detach", "--", "sh", "./tree.sh").stdout.strip()
    process_count = TREE_SIZE + 2
    run_processes = until(
        lambda: len(found := processes_of(run)) >= process_count and _stopped(found) and found,
        awaited=lambda: f"{process_count} processes:  {processes_of(run)}",
    )
    return run, run_processes


def _stopped(processes: set[Process]) -> bool:
    states = [Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] for pid, _ in processes]
    return "T" in states


def _kill(order: str, run: str, farm: Farm | None) -> None:
    """Send SIGKILL in that order; all are stopped first, so that none can react to the death of another."""
    ((guard, agent),) = guards_of(run).items()
    (rank,) = _ranks(agent)
    pids = {"guard": guard, "agent": agent, "rank": rank}
    victims = [pids[name] for name in order.split() if name in pids]
    if "connection" in order and farm is not None:
        farm.drop_connections()
    for pid in victims if len(victims) > 1 else ():
        os.kill(pid, signal.SIGSTOP)
    for pid in victims:
        keeper.kill(pid)  # the kernel may have ended it with its guard


def _ranks(agent: int) -> list[int]:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text("ascii").split()
    return [int(pid) for pid in children if "1005" in Path(f"/proc/{pid}/cmdline").read_text("utf-8")]


def _assert_gone(processes: set[Process]) -> None:
    """Wait: the guard ends by itself a moment after its agent. No other process of a run does."""
    until(lambda: not still_alive(processes), awaited=lambda: f"these processes to end: {still_alive(processes)}")


def _stop(orch: Orch, run: str, *, grace_s: float) -> None:
    """Stop the run as `orch stop` does, with a shorter grace period."""
    launcher = launcher_for(Store(orch.home).find(run).read_plan())
    try:
        assert launcher.stop(None, grace_s=grace_s) == []
    finally:
        launcher.close()
