"""Launches that fail or are stopped half way: started processes are ended, or reported as possibly still running."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import LaunchError, Unreachable
from orchestrator.launch import start as launching
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.system.machine import stat_fields
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.records.store import Store
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.runs import stop as stopping
from orchestrator.verdict.launching import this_process
from tests.grounds.cli import Orch
from tests.until import until

SLEEPERS = ("sh", "-c", "echo up; exec sleep 1000")


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes on this machine, each with a separate Python."""
    for name in ("n0", "n1"):
        (tmp_path / name).symlink_to(sys.executable)
    nodes = "".join(f"  - {{name: {name}, python: {tmp_path / name}}}\n" for name in ("n0", "n1"))
    (tmp_path / "inventory.yaml").write_text(
        f"name: here\naccelerator: cpu\ntransport: local\ndefaults: {{workdir: {tmp_path}/work}}\nnodes:\n{nodes}"
    )
    return Orch(tmp_path)


class LosingLauncher(DirectLauncher):
    """A launcher whose node n1 starts its agent and is unreachable from then on: without its Python no endpoint starts there."""

    def _start_agent(self, node: NodePlan, found: str) -> None:
        super()._start_agent(node, found)
        if node.name == "n1":
            self.reach(node).close()
            Path(node.python).unlink()
            raise Unreachable(node.name, "no answer for 60 s")


def _launched(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> LaunchError:
    def launcher_for(plan: LaunchPlan, *_: object) -> DirectLauncher:
        return LosingLauncher(plan, lambda node: LocalTransport(node.name))

    monkeypatch.setattr(launching, "launcher_for", launcher_for)
    monkeypatch.setenv("ORCH_HOME", str(orch.home))
    monkeypatch.chdir(orch.cwd)
    planned = plan_launch(LaunchArguments("ssh", None, None, None, None, (), SLEEPERS))
    with pytest.raises(LaunchError) as caught, launching.started(planned, pytest.fail):
        pass
    return caught.value


def test_failed_launch_that_could_not_be_undone_is_lost_until_it_is_stopped(
    orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _launched(orch, monkeypatch)
    assert "n1: no answer for 60 s" in str(error)
    assert f"not everything could be stopped:\n  n1: no Python: {orch.cwd}/n1 not found" in str(error)
    [record] = orch.records()
    assert record["state"] == "LOST"
    assert record["id"] in error.hint
    assert orch.processes_of(record["id"])

    assert f"n1: no Python: {orch.cwd}/n1 not found" in orch("stop", code=4).stderr
    assert orch.records()[0]["state"] == "LOST"

    (orch.cwd / "n1").symlink_to(sys.executable)
    orch("stop")
    assert orch.records()[0]["state"] == "STOPPED"
    until(lambda: not orch.processes_of(record["id"]), awaited="the ranks of n1 to be gone")


def test_stop_of_a_run_that_has_ended_names_the_nodes_that_it_could_not_query(orch: Orch) -> None:
    orch("ssh-launch", "--", "true")
    (orch.cwd / "n1").unlink()
    done = orch("stop", code=4)
    assert f"n1: no Python: {orch.cwd}/n1 not found" in done.stderr
    assert orch.records()[0]["state"] == "DONE"


HELD = """#!/bin/sh
case "$*" in *" run "*)
    touch {folder}/agent-requested
    while [ ! -e {folder}/gate ]; do sleep 0.02; done
esac
exec {python} "$@"
"""


def _hold_agent(orch: Orch, node: str) -> None:
    """Have the agent of that node wait for the file `gate`."""
    (orch.cwd / node).unlink()
    (orch.cwd / node).write_text(HELD.format(folder=orch.cwd, python=sys.executable))
    (orch.cwd / node).chmod(0o755)


@contextlib.contextmanager
def _process(script: str) -> Iterator[subprocess.Popen[str]]:
    """A process that belongs to no run, once it has written a line."""
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


# A shell without job control starts `orch ssh-launch &` like this, and nohup ignores SIGHUP.
IN_BACKGROUND = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")


@pytest.mark.parametrize("prefix", [(), IN_BACKGROUND], ids=["terminal", "background"])
def test_stop_during_a_launch_ends_the_launch_first(prefix: tuple[str, ...], orch: Orch) -> None:
    _hold_agent(orch, "n1")
    orch.prefix = prefix
    with orch.start("ssh-launch", "--detach", "--", *SLEEPERS) as launch:
        until((orch.cwd / "agent-requested").exists, awaited="n1's agent to be requested")
        with orch.start("stop") as stop:
            assert stop.stderr is not None
            [owner] = orch.supervisors()
            assert f"still being launched: pid {owner} was sent SIGTERM" in stop.stderr.readline()
            (orch.cwd / "gate").touch()
            assert stop.wait(60) == 0
        assert launch.wait(60) == 4
        assert launch.stderr is not None
        assert "interrupted during the launch; what had started was stopped" in launch.stderr.read()
    [record] = orch.records()
    assert (record["state"], record["launching"]) == ("STOPPED", None)
    assert not orch.processes_of(record["id"])
    assert not orch.supervisors()


def test_launch_under_nohup_keeps_watching_when_the_terminal_is_closed(orch: Orch) -> None:
    gate = orch.cwd / "gate"
    orch.prefix = IN_BACKGROUND
    with orch.start("ssh-launch", "--", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; echo end") as watcher:
        until(lambda: orch.records() and orch.records()[0]["started"], awaited="the launch to complete")
        os.killpg(watcher.pid, signal.SIGHUP)
        gate.touch()
        out, stderr = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, stderr
    assert "[n1:1] end" in out


def test_stop_of_a_launch_on_another_machine_ends_its_ranks_and_names_that_machine(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    orch.kill_supervisor(run)  # it would be on that machine, too
    elsewhere = {**this_process(), "host": "elsewhere", "boot_id": "another"}
    Store(orch.home).find(run).update(started=False, launching=elsewhere)
    done = orch("stop", code=4)
    assert f"run {run} may still be being launched on elsewhere" in done.stderr
    assert f"orch stop {run} on elsewhere" in done.stderr
    assert not orch.processes_of(run)


def test_launch_that_a_restart_of_this_machine_ended_is_stopped_like_any_run(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    before = {**this_process(), "host": socket.gethostname(), "boot_id": "earlier"}
    Store(orch.home).find(run).update(started=False, launching=before)
    assert f"run {run} is STOPPED" in orch("stop").stderr


def test_launch_that_does_not_exit_is_not_reported_as_stopped(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    run = orch("ssh-launch", "--detach", "--", "true").stdout.strip()
    folder = Store(orch.home).find(run)
    monkeypatch.setenv("ORCH_HOME", str(orch.home))
    monkeypatch.setattr(stopping, "CANCEL_S", 0.2)
    with _process("trap '' TERM; echo ready; exec sleep 1000") as stubborn:
        fields = stat_fields(stubborn.pid)
        assert fields is not None
        launching = {**this_process(), "pid": stubborn.pid, "start_time": int(fields[19])}
        folder.update(started=False, launching=launching)
        with pytest.raises(LaunchError, match=f"pid {stubborn.pid} has not ended"):
            stopping.stop(folder, print)
        assert stubborn.poll() is None


def test_process_with_the_pid_of_an_ended_launch_is_not_signalled(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    with _process("echo ready; exec sleep 1000") as bystander:
        launching = {**this_process(), "pid": bystander.pid, "start_time": 1}
        Store(orch.home).find(run).update(started=False, launching=launching)
        orch("stop")
        assert bystander.poll() is None


WITHOUT_OWNER = "import sys; from orchestrator.cli.app import main; sys.executable = sys.argv.pop(1); sys.exit(main())"


def _without_owner(orch: Orch, *words: str) -> subprocess.CompletedProcess[str]:
    """Run orch with a Python that runs a script instead of the process that owns the run."""
    python = orch.cwd / "python"
    python.write_text("#!/bin/sh\necho cannot start >&2; exit 3\n")
    python.chmod(0o755)
    argv = [sys.executable, "-c", WITHOUT_OWNER, str(python), *words]
    return subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=False)


def test_launch_whose_owner_does_not_start_fails_and_starts_nothing(orch: Orch) -> None:
    done = _without_owner(orch, "ssh-launch", "--", "echo", "up")
    assert done.returncode == 4
    assert "cannot start" in done.stderr
    assert "the process that launches the run has ended, exit status 3" in done.stderr
    assert not Store(orch.home).all()


def test_attach_reports_why_there_is_no_supervisor(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    orch.kill_supervisor(run)
    done = _without_owner(orch, "attach", "--detach")
    assert done.returncode == 4
    assert "exit status 3" in done.stderr
    orch("stop")


def test_detached_launch_has_its_supervisor_when_it_returns(orch: Orch) -> None:
    done = orch("ssh-launch", "--detach", "--", *SLEEPERS)
    assert orch.supervisor(done.stdout.strip()) is not None
    assert "warning" not in done.stderr
    orch("stop")
