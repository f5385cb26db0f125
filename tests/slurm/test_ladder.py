"""orch ladder through Slurm: each rung is a job, or a step of the job in which orch runs; none is restarted and nothing is left."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.grounds.cli import Orch, Started
from tests.grounds.ladders import FAILS_ON_TWO_NODES, NEEDS_AN_INTERFACE, assert_third_rung_failed
from tests.grounds.slurm import Cluster
from tests.until import until

LADDER = ("ladder", "--no-check")
RUN = ("--", "sh", "train.sh")


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    """orch beside a program and an inventory that would restart and requeue it for a day."""
    cluster.inventory(tmp_path, devices=2, slurm={"time": "1-00:00:00", "spare_nodes": 1, "max_retries": 5})
    (tmp_path / "train.sh").write_text(FAILS_ON_TWO_NODES)
    return Orch(tmp_path, env=dict(cluster.env))


def _submitted(orch: Orch) -> list[str]:
    """The batch scripts of all runs, the newest last."""
    return [next((orch.home / "runs" / record["id"]).rglob("submit.sbatch")).read_text() for record in orch.records()]


def test_each_rung_is_a_short_job_that_is_not_restarted_and_nothing_is_left(orch: Orch, cluster: Cluster) -> None:
    done = orch(*LADDER, "--slurm", "-j", "2x2", "--set", "slurm.comment=mine", *RUN, code=1)
    assert_third_rung_failed(done.stdout.splitlines(), "1 node", "2 nodes")
    assert [(record["state"], record["attempt"]) for record in orch.records()] == [
        ("STOPPED", 1),
        ("STOPPED", 1),
        ("FAILED", 1),
    ]
    for count, script in zip((1, 1, 2), _submitted(orch), strict=True):
        for option in (f"--nodes={count}", "--no-requeue", "--time=12", "--comment=mine"):
            assert f"#SBATCH {option}\n" in script
    assert cluster.jobs() == {}
    until(lambda: cluster.processes() == {}, awaited="the end of all processes of the jobs")


@pytest.mark.extended
def test_rungs_in_an_allocation_are_steps_of_it_on_its_nodes(orch: Orch, cluster: Cluster) -> None:
    ladder = shlex.join(orch.argv((*LADDER, "--here", *RUN)))
    shell = f"{ladder}; code=$?; squeue --noheader --steps --format=%j >steps; exit $code"
    argv = ["salloc", "--nodelist=n[1-2]", "bash", "-c", shell]
    done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    words = (
        "passed      rung 1 of 3, 1 rank on n1",
        "passed      rung 2 of 3, 2 ranks on n1",
        "FAILED      rung 3 of 3, 4 ranks on n[1-2]",
    )
    for line, start in zip(done.stdout.splitlines(), words, strict=False):
        assert line.startswith(start)
    assert len({record["slurm_job"] for record in orch.records()}) == 1
    assert (orch.cwd / "steps").read_text() == ""
    until(lambda: cluster.processes() == {}, awaited="the end of all processes of the jobs")


@pytest.mark.extended
def test_remedy_of_a_job_is_proved_by_short_jobs(orch: Orch, cluster: Cluster) -> None:
    cluster.inventory(orch.cwd, env={"GLOO_SOCKET_IFNAME": "none0"}, slurm={"max_retries": 5, "time": "00:50:00"})
    (orch.cwd / "train.sh").write_text(NEEDS_AN_INTERFACE)
    orch("submit", "-j", "3x1", *RUN, code=1)
    failed = orch.status()["id"]
    proof = json.loads(orch("diagnose", failed, "--prove", "--json").stdout)
    assert (proof["run"], proof["signature"], proof["result"]) == (failed, "gloo-no-interface", "proved")
    first, second, changed = (trial["rung"] for trial in proof["trials"])
    assert re.fullmatch(r"rung 1 of 3, 1 rank on n\d", first)  # a node on which it failed, though Slurm had chosen that
    assert second == changed
    assert second.startswith("rung 2 of 3, 2 ranks on ")
    states = {record["id"]: record["state"] for record in orch.records()}
    assert [states[trial["run"]] for trial in proof["trials"]] == ["DONE", "FAILED", "DONE"]
    for script in _submitted(orch)[1:]:
        assert "#SBATCH --no-requeue\n" in script
        assert re.search("^#SBATCH --time=1[12]$", script, re.MULTILINE)
    assert cluster.jobs() == {}


@pytest.mark.extended
def test_remedy_of_a_run_in_an_allocation_is_proved_by_steps_of_it(orch: Orch, cluster: Cluster) -> None:
    cluster.inventory(orch.cwd, env={"GLOO_SOCKET_IFNAME": "none0"})
    (orch.cwd / "train.sh").write_text(NEEDS_AN_INTERFACE)
    words = (("submit", "--no-check", "--here", *RUN), ("diagnose", "--prove", "--json"))
    submit, prove = (shlex.join(orch.argv(command)) for command in words)
    shell = f"{submit}; {prove} >proof; code=$?; squeue --noheader --steps --format=%j >steps; exit $code"
    argv = ["salloc", "--nodelist=n[1-2]", "bash", "-c", shell]
    done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads((orch.cwd / "proof").read_text())
    assert [(trial["rung"], trial["passed"], trial["change"]) for trial in proof["trials"]] == [
        ("rung 1 of 2, 1 rank on n1", True, None),
        ("rung 2 of 2, 2 ranks on n[1-2]", False, None),
        ("rung 2 of 2, 2 ranks on n[1-2]", True, "unset GLOO_SOCKET_IFNAME"),
    ]
    failed, *trials = orch.records()
    assert (proof["run"], proof["result"], len(trials)) == (failed["id"], "proved", 3)
    assert {record["slurm_job"] for record in trials} == {failed["slurm_job"]}
    assert (orch.cwd / "steps").read_text() == ""
    assert "in no Slurm job" in orch("diagnose", failed["id"], "--prove", code=2).stderr


def _ladder_behind(orch: Orch, cluster: Cluster, *options: str) -> tuple[str, Started]:
    """A job that has all nodes, and a ladder whose first job waits behind it, by its messages."""
    argv = ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1000"]
    blocker = subprocess.run(argv, env=cluster.env, check=True, capture_output=True, text=True).stdout.strip()
    until(lambda: cluster.jobs()[blocker] == "RUNNING", awaited="the nodes to be in use")
    ladder = orch.start(*LADDER, "--slurm", "-j", "1x1", *options, *RUN)
    assert ladder.stderr is not None
    line = ""
    while "PENDING" not in line:
        line = ladder.stderr.readline()
        assert line, "the ladder has ended"
    assert "(Resources)" in line
    return blocker, ladder


@pytest.mark.extended
def test_time_in_the_queue_does_not_count_for_a_rung(orch: Orch, cluster: Cluster) -> None:
    began = time.monotonic()
    blocker, ladder = _ladder_behind(orch, cluster, "--limit", "3s")
    with ladder:
        until(lambda: time.monotonic() - began > 6, awaited="more than the limit of a rung")
        assert ladder.poll() is None
        subprocess.run(["scancel", blocker], env=cluster.env, check=True)
        out, err = ladder.communicate(timeout=60)
    assert ladder.returncode == 0, out + err
    assert out.splitlines()[0] == "passed      rung 1 of 1, 1 rank on 1 node: all ranks made 5 steps"
    until(lambda: cluster.jobs() == {}, awaited="the queue to be empty")


@pytest.mark.extended
@pytest.mark.parametrize("phase", ["queue", "run"])
def test_ctrl_c_cancels_the_job_of_the_rung(orch: Orch, cluster: Cluster, phase: str) -> None:
    if phase == "queue":
        blocker, ladder = _ladder_behind(orch, cluster)
    else:
        blocker, ladder = "", orch.start(*LADDER, "--slurm", "-j", "1x1", "--steps", "9", *RUN)
        until(
            lambda: "RUNNING" in cluster.jobs().values() and "sleep" in cluster.processes().values(), awaited="a rank"
        )
    with ladder:
        ladder.send_signal(signal.SIGINT)
        out, err = ladder.communicate(timeout=60)
    assert ladder.returncode == 130, out + err
    assert re.search(r"interrupted: run ladder-\S+ of this rung is stopped", err)
    assert [*cluster.jobs()] == ([blocker] if blocker else [])
    [record] = orch.records()
    assert record["state"] == "STOPPED"


@pytest.mark.extended
def test_options_of_slurm_need_rungs_through_slurm(orch: Orch) -> None:
    stderr = orch(*LADDER, "-p", "debug", *RUN, code=2).stderr
    assert "--partition is for rungs through Slurm" in stderr
    assert "add --slurm or --here" in stderr
    listed = orch(*LADDER, "--slurm", "--nodes", "n2,n3", "--dry-run", *RUN).stdout.splitlines()
    assert listed == ["rung 1 of 3: 1 rank on n2", "rung 2 of 3: 2 ranks on n2", "rung 3 of 3: 4 ranks on n[2-3]"]
