"""S15: stop and gc find the run's processes by pid, start time and environment, and never signal any other process."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.node.run.ownership import agent_owner
from orchestrator.transports.local import LocalTransport
from tests.grounds import components
from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.marked import processes_of, still_alive
from tests.grounds.sshd import Farm
from tests.grounds.stand_in import alive
from tests.paths import ROOT
from tests.until import until

TRAIN = "import time; print('up', flush=True); time.sleep(1000)"


@pytest.fixture
def orch(tmp_path: Path) -> Iterator[Orch]:
    """orch on this machine, so that the nodes' account is the one that runs the tests."""
    base = {"name": "here", "accelerator": "cpu", "devices": 1, "transport": "local"}
    base |= {"defaults": {"workdir": str(tmp_path / ".work"), "python": sys.executable}, "nodes": [{"name": "n0"}]}
    write_inventory(tmp_path / "inventory.yaml", base, {})
    orch = Orch(tmp_path)
    yield orch
    for record in (orch.home / "runs").glob("*/run.json"):
        for pid, _ in processes_of(record.parent.name):
            os.kill(pid, signal.SIGKILL)


def _train(cwd: Path, **options: object) -> subprocess.Popen[str]:
    """Start a process that `pkill -f train.py` would end."""
    (cwd / "train.py").write_text(TRAIN)
    command = [sys.executable, "-u", "train.py"]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, start_new_session=True, **options)  # type: ignore[call-overload]
    assert process.stdout.readline() == "up\n"
    return process  # type: ignore[no-any-return]


def _launch(orch: Orch) -> str:
    (orch.cwd / "train.py").write_text(TRAIN)
    run = orch("ssh-launch", "--detach", "--", "train.py").stdout.strip()
    until(lambda: len(processes_of(run)) == 3, awaited=f"guard, agent and rank of {run}")
    return run


def _record(orch: Orch, run: str) -> Path:
    (path,) = orch.cwd.glob(f".work/runs/{run}/attempt-1/n0/agent.json")
    return path


def test_same_users_train_py_and_another_run_survive_a_stop(orch: Orch) -> None:
    with _train(orch.cwd) as bystander:
        stopped, running = _launch(orch), _launch(orch)
        neighbours = processes_of(running)
        orch("stop", stopped)
        assert not processes_of(stopped)
        assert still_alive(neighbours) == neighbours
        assert bystander.poll() is None
        orch("stop", running)
        assert bystander.poll() is None
        bystander.kill()


def test_other_process_on_an_ssh_node_survives_stop_and_gc(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, nodes=2)
    (farm.home / "train.py").write_text(TRAIN)
    argv = ["ssh", "-F", str(farm.ssh_config), "n0", f"nohup {farm.python} train.py >/dev/null 2>&1 & echo $!"]
    bystander = int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    orch = Orch(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    run = orch("ssh-launch", "--detach", "--", "train.py").stdout.strip()
    orch("stop", run)
    orch("gc", "--older-than", "0s")
    until(lambda: list(farm.processes()) == [bystander], awaited=lambda: f"the bystander alone: {farm.processes()}")


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another"}])
def test_process_with_a_reused_pid_is_not_signalled(orch: Orch, change: dict[str, object]) -> None:
    """The run has ended; its record is changed to the pid of another process, with another start time or boot id."""
    with _train(orch.cwd) as bystander:
        run = _launch(orch)
        orch("stop", run)
        record = _record(orch, run)
        agent = json.loads(record.read_text("utf-8"))
        record.write_text(json.dumps(agent | {"pid": bystander.pid, "pgid": bystander.pid} | change), "utf-8")
        orch("stop", run)
        assert bystander.poll() is None
        bystander.kill()


def test_another_users_process_is_not_signalled_even_with_the_runs_variables(orch: Orch) -> None:
    if os.geteuid() != 0:
        components.unavailable("only root can start a process as another user")
    run = _launch(orch)
    folder = _record(orch, run).parents[2]
    variables = {"ORCH_RUN_ID": run, "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0", "ORCH_RUN_DIR": str(folder)}
    nobody = pwd.getpwnam("nobody")
    argv = ["/bin/sh", "-c", "echo up; exec sleep 1000"]
    options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/", "env": variables}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as bystander:  # type: ignore[call-overload]
        assert bystander.stdout.readline() == b"up\n"
        _kill_agent_and_guard(run)
        orch("stop", run)
        assert processes_of(run) == {(bystander.pid, _start_time(bystander.pid))}
        bystander.kill()


def test_gc_ends_no_process_of_a_live_agent_even_if_its_record_is_wrong(orch: Orch) -> None:
    """As for an agent in a container: its own pid differs from the one outside."""
    run = _launch(orch)
    record = _record(orch, run)
    record.write_text(json.dumps(json.loads(record.read_text("utf-8")) | {"pid": 1, "start_time": 1}), "utf-8")
    assert not _strays(run)
    for pid in _agent_and_guard(run):
        os.kill(pid, signal.SIGSTOP)
    assert not _strays(run), "a stopped process is not dead"


def test_gc_ends_no_process_with_only_some_variables_of_a_run(orch: Orch) -> None:
    """Another run's id in the folder, an id that no run has, and a variable without its folder."""
    run = _launch(orch)
    orch("stop", run)
    folder = str(_record(orch, run).parents[2])
    variables = {"ORCH_RUN_ID": run, "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0", "ORCH_RUN_DIR": folder}
    changes = [
        {"ORCH_RUN_DIR": f"{folder}-2"},
        {"ORCH_RUN_ID": "mine", "ORCH_RUN_DIR": "/x/mine"},
        {"ORCH_RUN_DIR": ""},
    ]
    with contextlib.ExitStack() as stack:
        for change in [{}, *changes]:
            process = stack.enter_context(subprocess.Popen(["sleep", "1000"], env={**variables, **change}))
            stack.callback(process.kill)
        until(lambda: len(_strays(run)) == 1, awaited="the process with all variables")
        assert not _strays("mine")


def _strays(run: str) -> list[int]:
    """The processes that gc would end for that run, whatever their age; a dry run."""
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        return [
            stray["pid"]
            for stray in endpoint.strays(min_age_s=0, grace_s=0, dry_run=True)["strays"]
            if stray["run"] == run
        ]


def test_no_source_file_kills_processes_by_name() -> None:
    folders = [ROOT / name for name in ("orchestrator", "trainer", "templates", "scripts")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".j2", ".sh"}]
    assert len(files) > 50
    found = [
        str(path) for path in files if re.search(r"\b(p?kill\s+-f|pkill|killall|skill)\b", path.read_text("utf-8"))
    ]
    assert not found


def _agent_and_guard(run: str) -> list[int]:
    return [pid for pid, _ in processes_of(run) if agent_owner(pid) is not None]


def _kill_agent_and_guard(run: str) -> None:
    """Stop both first, so that neither reacts to the other's end."""
    pids = _agent_and_guard(run)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    until(lambda: not any(alive(pid) for pid in pids), awaited="guard and agent to end")


def _start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19])
