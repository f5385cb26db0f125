"""`orch ssh-launch` on this machine: programs, their folder and arguments, and the end of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.two_nodes import LOADED, SLOW_MODULES, open_gate
from tests.grounds.cli import Orch
from tests.until import until


@pytest.mark.parametrize("end", ["done", "stopped"])
def test_supervisor_log_of_an_ordinary_run_is_empty(orch: Orch, end: str) -> None:
    open_gate(orch)
    seconds = "1" if end == "done" else "1000"
    run = orch("ssh-launch", "--detach", "--", "sleep", seconds).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    if end == "stopped":
        _status_warns_of_idle_cards(orch, run)
        orch("stop", run)
    until(lambda: not orch.supervisors(), awaited="the supervisor to end")
    assert orch.status(run)["state"] == end.upper()
    assert (orch.home / "runs" / run / "supervisor.log").read_text("utf-8") == ""


def _status_warns_of_idle_cards(orch: Orch, run: str) -> None:
    """The agent's report is written by the test, as this machine has no cards."""
    cards = {"time": 1.0, "tool": "nvidia-smi", "error": "", "cards": [], "idle": [1], "expected": 2, "used": 1}
    (orch.cwd / ".work" / "runs" / run / "attempt-1" / "n0" / "cards.json").write_text(json.dumps(cards))
    assert "n0: 1 of 2 cards idle (nvidia-smi shows 0 % on 1" in orch("status", run).stderr
    status = orch.status(run)
    assert [node["agent"]["binding"]["cpus"] for node in status["nodes"]] == [[], []]  # this machine has no cards
    [finding] = status["findings"]
    assert (finding["check"], finding["nodes"], finding["severity"]) == ("idle-cards", ["n0"], "WARN")


def test_launch_that_was_killed_is_lost_until_it_is_stopped(orch: Orch) -> None:
    with orch.start("ssh-launch", "--", "sleep", "1000") as launch:
        until(lambda: list(orch.cwd.glob(".work/runs/*/attempt-1/n0/agent.json")), awaited="the first agent")
        os.kill(orch.supervisors()[0], signal.SIGKILL)
        launch.communicate()
    status = json.loads(orch("status", "--json", code=5).stdout)
    assert status["state"] == "LOST"
    assert "no trace of the run on n1" in status["message"]
    orch("stop")
    assert orch.status()["state"] == "STOPPED"


@pytest.mark.parametrize("program", [[], [""]])
def test_nothing_after_two_dashes_does_not_start_the_trainer(orch: Orch, program: list[str]) -> None:
    assert "there is no program after --" in orch("ssh-launch", "--", *program, code=2).stderr


def test_program_of_a_node_that_fails_ends_the_run_and_is_named_with_its_last_lines(orch: Orch) -> None:
    """A process that the program started, as torchrun starts ranks, ends with it."""
    open_gate(orch)
    script = "sleep 1000 & [ $NODE_RANK = 1 ] && { echo lost >&2; exit 3; }; wait"
    run = orch("ssh-launch", "--detach", "--per-node", "--", "sh", "-c", script).stdout.strip()
    until(lambda: orch.recorded(run) == "FAILED", awaited="the supervisor's verdict")
    status = orch.status()
    assert [node["finished"]["state"] for node in status["nodes"]] == ["STOPPED", "FAILED"]
    assert (status["exit"]["rank"], status["exit"]["code"], status["exit"]["lines"]) == (None, 3, ["lost"])
    assert "first failure: the program on n1 exited 3" in orch("status", code=1).stdout


def test_argument_that_is_not_text_arrives_byte_for_byte(orch: Orch) -> None:
    open_gate(orch)
    (orch.cwd / "show.py").write_text("import os, sys; print(os.fsencode(sys.argv[1]))")
    orch("ssh-launch", "--", "show.py", "\udcff\udcfe x")
    assert "[n0:0] b'\\xff\\xfe x'" in orch("logs").stdout


def test_program_runs_in_the_folder_it_was_started_in_even_if_that_is_empty_also_when_rerun_elsewhere(
    orch: Orch,
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=orch.cwd, check=True)
    (orch.cwd / "up.py").write_text("import os; print(os.path.basename(os.getcwd()))")
    (orch.cwd / "empty").mkdir()
    inner = Orch(orch.cwd / "empty", env={"ORCH_INVENTORY": str(orch.cwd / "inventory.yaml")})
    open_gate(orch)
    assert "[n0:0] empty" in inner("ssh-launch", "--", "../up.py").stdout
    elsewhere = Orch(orch.cwd, env={"ORCH_HOME": str(inner.home)})
    assert elsewhere("rerun", "--nodes", "n0", "latest").stdout == "[n0:0] empty\n"
    assert json.loads(elsewhere("status", "--json").stdout)["rerun_of"] is not None


@pytest.mark.processes
def test_launch_over_ssh_imports_no_launcher_of_slurm(orch: Orch) -> None:
    open_gate(orch)
    argv = [sys.executable, "-c", LOADED, "ssh-launch", "--", "true"]
    done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stderr.split()}.intersection(SLOW_MODULES)
    argv = [sys.executable, "-c", "import sys, orchestrator.usecases.owner.owner; print(*sys.modules)"]
    modules = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert "orchestrator.launchers.direct" in modules
    assert not {f"orchestrator.launchers.slurm.{name}" for name in ("launcher", "host", "login_node")} & modules
