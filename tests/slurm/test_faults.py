"""What goes wrong in Slurm while a run waits, runs and ends: the right state in the end, and no line of its log lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

# Counts until the test says that it is enough.
COUNT = 'n=0; while ! [ -e "$0" ]; do n=$((n+1)); echo "line $n"; sleep 0.2; done; echo "last line"'


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Iterator[Orch]:
    cluster.inventory(tmp_path)
    yield Orch(tmp_path, env=dict(cluster.env))
    cluster.repair()


def _texts(orch: Orch, run: str) -> list[str]:
    return [line["text"] for line in orch.lines(run) if line["stream"] == "out"]


def _counting(orch: Orch) -> tuple[str, Path]:
    enough = orch.cwd / "enough"
    run = orch("submit", "--detach", "-j", "1x1", "--", "sh", "-c", COUNT, str(enough)).stdout.strip()
    until(lambda: "line 3" in orch.printed(run), deadline_s=60, awaited="a few lines")
    return run, enough


@pytest.mark.timeout(300)
def test_run_that_ends_while_slurmctld_is_down_is_done_and_its_log_is_whole(orch: Orch, cluster: Cluster) -> None:
    run, enough = _counting(orch)
    orch.env = cluster.short_timeout_env()
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        cluster.stop_controller()
        said = ""
        while "Slurm does not answer" not in said:  # by then squeue has been asked, and lines went on meanwhile
            said = following.stderr.readline()
            assert said, "the follow ended"
        before = orch.printed(run).count("line")
        until(lambda: orch.printed(run).count("line") > before + 3, deadline_s=60, awaited="more lines")
        enough.touch()
        text = following.stdout.read()
        assert following.wait() == 0
    lines = [line.partition("] ")[2] for line in text.splitlines() if "] " in line and "line" in line]
    assert lines == [*(f"line {n}" for n in range(1, len(lines))), "last line"]
    assert orch.status(run)["state"] == "DONE"
    cluster.start_controller()
    assert orch.status(run)["state"] == "DONE"


def _wrapped(orch: Orch, program: str, script: str) -> None:
    """Put a script in the place of a program of Slurm; `$real` is that."""
    folder, real = orch.cwd / "bin", shutil.which(program, path=orch.env.get("PATH"))
    folder.mkdir()
    (folder / program).write_text(f"#!/bin/sh\nreal={real}\ncd {orch.cwd}\n{script}\n")
    (folder / program).chmod(0o700)
    orch.env["PATH"] = f"{folder}:{os.environ['PATH']}"


def test_follow_prints_on_while_squeue_hangs(orch: Orch) -> None:
    run, enough = _counting(orch)
    _wrapped(orch, "squeue", 'echo $$ >pid; mv pid asked; until [ -e enough ]; do sleep 0.1; done; exec $real "$@"')
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        until((orch.cwd / "asked").exists, awaited="squeue to be asked")
        for _ in range(30):
            assert following.stdout.readline(), "the follow ended"
        assert Path("/proc", (orch.cwd / "asked").read_text().strip()).exists()
        enough.touch()
        following.stdout.read()
        assert following.wait() == 0


def test_submission_that_slurmctld_refuses_to_hear_fails_and_leaves_nothing(orch: Orch, cluster: Cluster) -> None:
    cluster.stop_controller()
    orch.env = cluster.short_timeout_env()
    done = orch("submit", "--detach", "-j", "1x1", "--", "true", code=4)
    assert "Unable to contact slurm controller" in done.stderr
    assert "scontrol ping" in done.stderr
    assert orch.status()["state"] == "FAILED"
    cluster.start_controller()
    assert cluster.jobs() == {}


@pytest.mark.timeout(300)
def test_job_that_slurm_took_although_sbatch_timed_out_is_the_runs_and_the_only_one(
    orch: Orch, cluster: Cluster
) -> None:
    """A slurmctld that hangs comes to the request later, when sbatch has given up long since."""
    _wrapped(orch, "sbatch", '$real "$@"; code=$?; touch gave-up; exit $code')
    cluster.stop_controller(hang=True)
    with orch.start("submit", "--detach", "-j", "1x1", "--", "sleep", "1000") as submitting:
        until((orch.cwd / "gave-up").exists, deadline_s=60, awaited="sbatch to give up")
        cluster.start_controller()
        out, said = submitting.communicate()
        assert submitting.returncode == 0, said
    run = out.strip()
    assert list(cluster.jobs()) == [cluster.wait_for(orch, run, "RUNNING")["slurm_job"]]


def _slurm(cluster: Cluster, *argv: str) -> str:
    return subprocess.run(argv, env=cluster.env, check=True, capture_output=True, text=True).stdout


def _other_job(cluster: Cluster) -> str:
    """Submit a job that is not orch's; returns its id."""
    return _slurm(cluster, "sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000").strip()


def test_job_id_is_the_one_that_sbatch_printed_and_not_one_in_a_note_of_the_site(orch: Orch, cluster: Cluster) -> None:
    other = _other_job(cluster)
    _wrapped(orch, "sbatch", f'echo "Note: your job {other} uses 3% of its CPUs"; exec $real "$@"')
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    [job] = set(cluster.jobs()) - {other}
    assert orch.status(run)["slurm_job"] == job
    orch("stop", run)
    assert list(cluster.jobs()) == [other]


def test_job_of_a_submission_whose_output_has_no_id_is_found_by_its_name(orch: Orch, cluster: Cluster) -> None:
    _wrapped(orch, "sbatch", '$real "$@" >/dev/null && echo "Note: your job 99999 was submitted"')
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    assert list(cluster.jobs()) == [orch.status(run)["slurm_job"]]


def test_stop_never_cancels_a_job_of_another_name(orch: Orch, cluster: Cluster) -> None:
    other = _other_job(cluster)
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    record = orch.home / "runs" / run / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text("utf-8")) | {"slurm_job": other}))
    running = set(cluster.jobs())
    said = orch("stop", run, code=4).stderr
    assert f"Slurm job {other} is named wrap, not {run}" in said
    assert f"squeue --me --name={run}" in said
    assert set(cluster.jobs()) == running
    _slurm(cluster, "scancel", other)
    until(lambda: other not in cluster.jobs(), deadline_s=30, awaited="the other job to be over")
    assert "is named wrap" in orch("stop", run, code=4).stderr  # the run's own job still runs


@pytest.mark.timeout(300)
def test_held_job_says_who_holds_it_and_is_followed_when_it_is_released(orch: Orch, cluster: Cluster) -> None:
    blocker = orch("submit", "--detach", "-j", "4x1", "--", "sleep", "1000").stdout.strip()
    cluster.wait_for(orch, blocker, "RUNNING")
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    (orch.cwd / "inventory.yaml").write_text(text.replace("slurm:", "slurm:\n  options: ['--hold', '--exclusive']"))
    with orch.start("submit", "--follow", "-j", "1x1", "--", "echo", "let", "go") as following:
        assert following.stdout is not None
        assert following.stderr is not None
        said = ""
        while "JobHeldUser" not in said:
            said = following.stderr.readline()
            assert said, "the follow ended"
        run = orch("list", "--json").stdout and orch.records()[-1]["id"]
        job = orch.status(run)["slurm_job"]
        assert f"scontrol release {job}" in said
        queue = orch.status(run)["queue"]
        assert (queue["job"], queue["state"], queue["reason"]) == (job, "PENDING", "JobHeldUser")
        assert queue["partition"] == "debug"
        assert queue["limit"] == "10:00"
        assert "scontrol release" in orch("status", run).stdout
        _slurm(cluster, "scontrol", "release", job)
        orch("stop", blocker)
        out, rest = following.communicate()
        assert following.returncode == 0, rest
    assert "] let go" in out


def test_place_in_the_queue_and_expected_start_are_told(orch: Orch, cluster: Cluster) -> None:
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    (orch.cwd / "inventory.yaml").write_text(text.replace("slurm:", "slurm:\n  options: ['--exclusive']"))
    runs = [orch("submit", "--detach", "-j", "4x1", "--", "sleep", "1000").stdout.strip() for _ in range(3)]
    cluster.wait_for(orch, runs[0], "RUNNING")
    until(lambda: "2 of 2" in (orch.status(runs[2])["queue"]["position"]), deadline_s=30, awaited="two to wait")
    said = until(
        lambda: (text := orch("status", runs[1]).stdout) and "expected to start" in text and text,
        deadline_s=60,
        awaited="an estimate",
    )
    assert "1 of 2 waiting in partition debug" in said
    assert "(Resources): the nodes that it asks for are not free yet" in said
    running = orch("status", runs[0]).stdout
    assert "nodes 4 (n[0-3])" in running
    assert "of 10:00" in running
    assert cluster.jobs()[orch.status(runs[0])["slurm_job"]] == "RUNNING"


def test_run_goes_on_and_is_done_though_a_slurmd_was_killed(orch: Orch, cluster: Cluster) -> None:
    run, enough = _counting(orch)
    [node] = orch.status(run)["nodes"]
    cluster.kill_slurmd(node["node"])
    enough.touch()
    cluster.wait_for(orch, run, "DONE")
    assert _texts(orch, run)[-1] == "last line"


@pytest.mark.timeout(300)
def test_job_of_a_lost_node_waits_and_goes_on_in_its_next_attempt(orch: Orch, cluster: Cluster) -> None:
    program = 'echo "attempt $ORCH_ATTEMPT"; [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000'
    run = orch("submit", "--detach", "-j", "2x1", "--", "sh", "-c", program).stdout.strip()
    until(lambda: orch.printed(run).splitlines()[:2] == ["attempt 1"] * 2, deadline_s=60, awaited="the first attempt")
    status = orch.status(run)
    cluster.lose_node(status["nodes"][1]["node"])
    cluster.wait_for(orch, run, "PENDING")
    cluster.start_now(status["slurm_job"])
    cluster.wait_for(orch, run, "DONE", deadline_s=120)
    assert _texts(orch, run) == ["attempt 1"] * 2 + ["attempt 2"] * 2


def test_job_that_needs_a_drained_node_names_it(orch: Orch, cluster: Cluster) -> None:
    _slurm(cluster, "scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
    run = orch("submit", "--detach", "--nodes", "n1", "--", "true").stdout.strip()
    said = until(
        lambda: (text := orch("status", run).stdout) and "drained or do not answer: n1" in text and text,
        deadline_s=60,
        awaited="the reason",
    )
    assert "PENDING" in said
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"


@pytest.mark.timeout(300)
def test_time_limit_fails_the_run_and_is_named(orch: Orch, cluster: Cluster) -> None:
    run, _ = _counting(orch)
    with orch.start("logs", "-f", run) as following:
        _slurm(cluster, "scontrol", "update", f"JobId={orch.status(run)['slurm_job']}", "EndTime=now+2")
        _, said = following.communicate()
    assert f"run {run} is FAILED" in said
    status = orch.status(run)
    assert status["state"] == "FAILED"
    assert status["message"] == "Slurm ended the job: TIMEOUT TimeLimit"


def test_machine_without_squeue_does_not_take_a_running_job_for_lost(orch: Orch) -> None:
    run, enough = _counting(orch)
    folder = orch.cwd / "no-slurm"
    folder.mkdir()
    orch.env["PATH"] = str(folder)
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        for _ in range(20):
            assert following.stdout.readline(), "the follow ended"
        status = orch.status(run)
        assert (status["state"], status["queue"]["reason"]) == ("RUNNING", "there is no squeue on this machine")
        enough.touch()
        following.stdout.read()
        assert following.wait() == 0
    assert orch.status(run)["state"] == "DONE"
