"""`orch stop --save`: ranks that can save do so, over SSH and under Slurm alike, and the run is STOPPED with the saved step named."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.until import until

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(240)]

DEADLINE_S = 100.0
ENV = {"OMP_NUM_THREADS": "1"}
TRAINING = (
    "model.layers=1", "model.width=32", "model.context=32", "micro_batch=2", "device=cpu", "steps=1000000", "save_steps=1000000", "report=",
)  # fmt: skip
SLOW_SAVE = """
import os, signal, sys, time
from orch_progress import report
ending = []
signal.signal(signal.SIGUSR2, lambda *_: ending.append(True))
step = 0
print("up", flush=True)
while True:
    step += 1
    report(step, saved=0)
    time.sleep(0.1)
    if ending:
        print("saving", flush=True)
        if os.environ["RANK"] == "0":
            time.sleep(SAVE_S)
            report(step, saved=step)
        sys.exit(99)
"""


def _progress(orch: Orch, run: str) -> list[dict[str, Any]]:
    return [report for node in orch.status(run)["nodes"] for report in node["progress"].values()]


def _train(orch: Orch, *words: str) -> str:
    run = orch(*words, "--detach", *TRAINING).stdout.strip()
    trains = re.compile(r"^step=([4-9]|\d\d)", re.MULTILINE)
    until(lambda: trains.search(orch.printed(run)), deadline_s=DEADLINE_S, awaited=lambda: orch.printed(run))
    return run


def _require_saved(orch: Orch, run: str, stopped: str) -> None:
    """The record has the step that is saved, a complete checkpoint of it exists, and no rank or other attempt is left."""
    message = re.search(rf"run {run} is STOPPED: step (\d+) is saved$", stopped, re.MULTILINE)
    assert message, stopped
    status = orch.status(run)
    assert (status["state"], status["attempt"]) == ("STOPPED", 1)
    assert {(report["step"], report["saved"]) for report in _progress(orch, run)} == {(int(message[1]),) * 2}
    folder = orch.node_folders(run)[0].parent.parent
    assert (folder / "checkpoints" / f"step_{message[1]}" / "manifest.json").exists()
    assert not orch.processes_of(run)


def test_training_over_ssh_saves_and_ends(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, shared=True, env=ENV)
    orch = Orch(tmp_path)
    run = _train(orch, "ssh-launch", "--no-check", "--max-retries", "3")
    stopped = orch("stop", run, "--save").stderr
    assert "the ranks save and end, within 10m" in stopped
    _require_saved(orch, run, stopped)


def test_program_under_slurm_saves_and_ends_and_its_job_is_not_requeued(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, devices=1)
    orch = Orch(tmp_path, env=cluster.env)
    (tmp_path / "train.py").write_text(SLOW_SAVE.replace("SAVE_S", "0.5"))
    run = orch("submit", "-j", "2x1", "--detach", "--", "train.py").stdout.strip()
    until(
        lambda: orch.printed(run).splitlines().count("up") == 2,
        deadline_s=DEADLINE_S,
        awaited=lambda: orch.printed(run),
    )
    stopped = orch("stop", run, "--save", "--grace", "2m").stderr
    assert re.search(rf"run {run} is STOPPED: step \d+ is saved$", stopped, re.MULTILINE), stopped
    assert (orch.status(run)["state"], orch.status(run)["attempt"]) == ("STOPPED", 1)
    assert not orch.processes_of(run)
    assert not orch("logs", run, "--grep", "requeued|restarts").stdout


def _start(orch: Orch, save_s: float, *words: str) -> str:
    (orch.cwd / "train.py").write_text(SLOW_SAVE.replace("SAVE_S", str(save_s)))
    run = orch("ssh-launch", "--no-check", "--detach", *words, "--", "train.py").stdout.strip()
    until(lambda: orch.printed(run).count("up") == 2, awaited="the ranks")
    return run


def test_node_that_needs_longer_is_not_ended_with_the_other_one(farm: Farm, tmp_path: Path) -> None:
    """Rank 0 saves for longer than the ten seconds of an ordinary stop; the supervisor waits for it, too."""
    farm.inventory(tmp_path)
    orch = Orch(tmp_path)
    run = _start(orch, 15.0)
    stopped = orch("stop", run, "--save").stderr
    assert re.search(rf"run {run} is STOPPED: step \d+ is saved$", stopped, re.MULTILINE), stopped


def test_second_stop_ends_the_ranks_at_once_and_ctrl_c_leaves_them_alone(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path)
    orch = Orch(tmp_path)
    run = _start(orch, 600.0)
    with orch.start("stop", run, "--save") as first:
        until(lambda: "saving" in orch.printed(run), awaited="the save")
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=30)
    assert first.returncode == 130
    assert f"the ranks save and end without this command; `orch stop {run}` ends them at once" in errors
    assert orch.status(run)["state"] == "RUNNING"
    stopped = orch("stop", run).stderr
    assert f"run {run} is STOPPED" in stopped
    assert not orch.processes_of(run)


def test_program_that_cannot_save_is_ended_without_waiting(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path)
    orch = Orch(tmp_path)
    run = orch("ssh-launch", "--no-check", "--detach", "--", "sleep", "1000").stdout.strip()
    until(lambda: len(orch.processes_of(run)) >= 2, awaited="the ranks")
    stopped = orch("stop", run, "--save").stderr
    assert "no rank can be asked to save: the program does not handle SIGUSR2, and is ended without a save" in stopped
    assert f"run {run} is STOPPED" in stopped


def test_lost_agent_during_the_save_is_named_and_the_run_is_over(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path)
    orch = Orch(tmp_path)
    run = _start(orch, 600.0)
    with orch.start("stop", run, "--save") as stopping:
        until(lambda: "saving" in orch.printed(run), awaited="the save")
        os.kill(orch.agent_pid(run, "n0"), signal.SIGKILL)
        _, errors = stopping.communicate(timeout=100)
    assert orch.status(run)["state"] in {"STOPPED", "FAILED"}, errors
    assert not orch.processes_of(run)
