"""Faults of Slurm while a run waits, runs and ends: the final state is right, and no line of the log is lost."""

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

# Counts until the test creates the file `enough`.
COUNT = 'n=0; while ! [ -e "$0" ]; do n=$((n+1)); echo "line $n"; sleep 0.2; done; echo "last line"'


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Iterator[Orch]:
    cluster.inventory(tmp_path)
    yield Orch(tmp_path, env=dict(cluster.env))
    cluster.repair()


def _texts(orch: Orch, run: str) -> list[str]:
    return [line["text"] for line in orch.lines(run) if line["stream"] == "out"]


def _start_counting(orch: Orch) -> tuple[str, Path]:
    enough = orch.cwd / "enough"
    run = orch("submit", "--detach", "-j", "1x1", "--", "sh", "-c", COUNT, str(enough)).stdout.strip()
    until(lambda: "line 3" in orch.printed(run), awaited="a few lines")
    return run, enough


@pytest.mark.timeout(300)
def test_run_that_ends_while_slurmctld_is_down_is_done_and_its_log_is_whole(orch: Orch, cluster: Cluster) -> None:
    run, enough = _start_counting(orch)
    orch.env = cluster.short_timeout_env()
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        cluster.stop_controller()
        warning = ""
        # by then squeue has failed, and lines were printed during its call
        while "Slurm does not answer" not in warning:
            warning = following.stderr.readline()
            assert warning, "the follow ended"
        before = orch.printed(run).count("line")
        until(lambda: orch.printed(run).count("line") > before + 3, awaited="more lines")
        enough.touch()
        text = following.stdout.read()
        assert following.wait() == 0
    lines = [line.partition("] ")[2] for line in text.splitlines() if "] " in line and "line" in line]
    assert lines == [*(f"line {n}" for n in range(1, len(lines))), "last line"]
    assert orch.status(run)["state"] == "DONE"
    cluster.start_controller()
    assert orch.status(run)["state"] == "DONE"


def _wrap_program(orch: Orch, program: str, script: str) -> None:
    """Put a script before a program of Slurm on the PATH; `$real` is the program itself."""
    folder, real = orch.cwd / "bin", shutil.which(program, path=orch.env.get("PATH"))
    folder.mkdir()
    (folder / program).write_text(f"#!/bin/sh\nreal={real}\ncd {orch.cwd}\n{script}\n")
    (folder / program).chmod(0o700)
    orch.env["PATH"] = f"{folder}:{os.environ['PATH']}"


@pytest.mark.extended
def test_follow_keeps_printing_while_squeue_hangs(orch: Orch) -> None:
    run, enough = _start_counting(orch)
    _wrap_program(
        orch, "squeue", 'echo $$ >pid; mv pid squeue-called; until [ -e enough ]; do sleep 0.1; done; exec $real "$@"'
    )
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        until((orch.cwd / "squeue-called").exists, awaited="squeue to be called")
        for _ in range(30):
            assert following.stdout.readline(), "the follow ended"
        assert Path("/proc", (orch.cwd / "squeue-called").read_text().strip()).exists()
        status = orch("status", run).stdout
        assert f"{run}  RUNNING" in status
        assert "Slurm does not answer (squeue gave no answer in 5 s)" in status
        enough.touch()
        following.stdout.read()
        assert following.wait() == 0


def test_submission_without_a_configuration_of_slurm_fails_at_once(orch: Orch) -> None:
    orch.prefix = ("env", "--unset=SLURM_CONF")
    stderr = orch("submit", "--detach", "-j", "1x1", "--", "true", code=4).stderr
    assert "scontrol: fatal: Could not establish a configuration source" in stderr
    assert "module load slurm" in stderr
    assert orch.records()[-1]["state"] == "FAILED"


def test_submission_fails_and_leaves_no_job_while_slurmctld_is_down(orch: Orch, cluster: Cluster) -> None:
    cluster.stop_controller()
    orch.env = cluster.short_timeout_env()
    done = orch("submit", "--detach", "-j", "1x1", "--", "true", code=4)
    assert "Unable to contact slurm controller" in done.stderr
    assert "scontrol ping" in done.stderr
    assert orch.status()["state"] == "FAILED"
    cluster.start_controller()
    assert cluster.jobs() == {}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_run_is_ended_by_a_file_while_slurmctld_is_down(orch: Orch, cluster: Cluster) -> None:
    run, _ = _start_counting(orch)
    cluster.stop_controller()
    assert f"until then, `orch stop {run} --save --grace 1s` ends its ranks" in orch("stop", run, code=4).stderr
    assert orch.processes_of(run)
    orch("stop", run, "--save", "--grace", "1s", code=4)  # Slurm still has the job
    assert not orch.processes_of(run)
    cluster.start_controller()
    cluster.wait_for(orch, run, "STOPPED")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_job_that_slurmctld_accepts_after_sbatch_timed_out_is_the_runs_only_job(orch: Orch, cluster: Cluster) -> None:
    """A slurmctld that hung handles the request later, when sbatch has already timed out."""
    _wrap_program(orch, "sbatch", '$real "$@"; code=$?; touch timed-out; exit $code')
    cluster.stop_controller(hang=True)
    with orch.start("submit", "--detach", "-j", "1x1", "--", "sleep", "1000") as submitting:
        until((orch.cwd / "timed-out").exists, awaited="sbatch to time out")
        cluster.start_controller()
        out, stderr = submitting.communicate()
        assert submitting.returncode == 0, stderr
    run = out.strip()
    assert list(cluster.jobs()) == [cluster.wait_for(orch, run, "RUNNING")["slurm_job"]]


def _slurm(cluster: Cluster, *argv: str) -> str:
    return subprocess.run(argv, env=cluster.env, check=True, capture_output=True, text=True).stdout


def _submit_foreign_job(cluster: Cluster) -> str:
    """Submit a job without orch; returns its id."""
    return _slurm(cluster, "sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000").strip()


def test_job_id_is_read_from_sbatch_and_not_from_a_note_of_the_site(orch: Orch, cluster: Cluster) -> None:
    foreign_job = _submit_foreign_job(cluster)
    _wrap_program(orch, "sbatch", f'echo "Note: your job {foreign_job} uses 3% of the CPUs"; exec $real "$@"')
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    [job] = set(cluster.jobs()) - {foreign_job}
    assert orch.status(run)["slurm_job"] == job
    orch("stop", run)
    assert list(cluster.jobs()) == [foreign_job]


@pytest.mark.extended
def test_job_of_a_submission_whose_output_has_no_id_is_found_by_its_folder(orch: Orch, cluster: Cluster) -> None:
    _wrap_program(orch, "sbatch", '$real "$@" >/dev/null && echo "Note: your job 99999 was submitted"')
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    assert list(cluster.jobs()) == [orch.status(run)["slurm_job"]]


def test_stop_never_cancels_a_job_in_another_folder(orch: Orch, cluster: Cluster) -> None:
    foreign_job = _submit_foreign_job(cluster)
    run = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    record = orch.home / "runs" / run / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text("utf-8")) | {"slurm_job": foreign_job}))
    running = set(cluster.jobs())
    stderr = orch("stop", run, code=4).stderr
    assert f"Slurm job {foreign_job} (wrap) does not run in the folder of {run}" in stderr
    assert f"squeue --me --name={run}" in stderr
    assert set(cluster.jobs()) == running
    _slurm(cluster, "scancel", foreign_job)
    until(lambda: foreign_job not in cluster.jobs(), awaited="the foreign job to end")
    assert "(wrap) does not run" in orch("stop", run, code=4).stderr  # the run's own job still runs


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_held_job_is_reported_with_the_release_command_and_followed_after_it(orch: Orch, cluster: Cluster) -> None:
    blocker = orch("submit", "--detach", "-j", "4x1", "--", "sleep", "1000").stdout.strip()
    cluster.wait_for(orch, blocker, "RUNNING")
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    (orch.cwd / "inventory.yaml").write_text(text.replace("slurm:", "slurm:\n  options: ['--hold', '--exclusive']"))
    with orch.start("submit", "--follow", "-j", "1x1", "--", "echo", "it", "ran") as following:
        assert following.stdout is not None
        assert following.stderr is not None
        reason = ""
        while "JobHeldUser" not in reason:
            reason = following.stderr.readline()
            assert reason, "the follow ended"
        run = orch("list", "--json").stdout and orch.records()[-1]["id"]
        job = orch.status(run)["slurm_job"]
        assert f"scontrol release {job}" in reason
        queue = orch.status(run)["queue"]
        assert (queue["job"], queue["state"], queue["reason"]) == (job, "PENDING", "JobHeldUser")
        assert queue["partition"] == "debug"
        assert queue["limit"] == "10:00"
        assert "scontrol release" in orch("status", run).stdout
        _slurm(cluster, "scontrol", "release", job)
        orch("stop", blocker)
        out, rest = following.communicate()
        assert following.returncode == 0, rest
    assert "] it ran" in out


@pytest.mark.extended
def test_status_reports_the_queue_position_and_expected_start(orch: Orch, cluster: Cluster) -> None:
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    (orch.cwd / "inventory.yaml").write_text(text.replace("slurm:", "slurm:\n  options: ['--exclusive']"))
    runs = [orch("submit", "--detach", "-j", "4x1", "--", "sleep", "1000").stdout.strip() for _ in range(3)]
    cluster.wait_for(orch, runs[0], "RUNNING")
    until(lambda: "2 of 2" in (orch.status(runs[2])["queue"]["position"]), awaited="two to wait")
    status_text = until(
        lambda: (text := orch("status", runs[1]).stdout) and "expected to start" in text and text,
        awaited="an estimate",
    )
    assert "1 of 2 waiting in partition debug" in status_text
    assert "(Resources): the nodes that it requests are not free yet" in status_text
    running = orch("status", runs[0]).stdout
    assert "nodes 4 (n[0-3])" in running
    assert "of 10:00" in running
    assert cluster.jobs()[orch.status(runs[0])["slurm_job"]] == "RUNNING"


@pytest.mark.extended
def test_run_is_done_though_a_slurmd_was_killed(orch: Orch, cluster: Cluster) -> None:
    run, enough = _start_counting(orch)
    [node] = orch.status(run)["nodes"]
    cluster.kill_slurmd(node["node"])
    enough.touch()
    cluster.wait_for(orch, run, "DONE")
    assert _texts(orch, run)[-1] == "last line"


@pytest.mark.timeout(300)
def test_job_of_a_lost_node_is_requeued_and_continues_in_its_next_attempt(orch: Orch, cluster: Cluster) -> None:
    program = 'echo "attempt $ORCH_ATTEMPT"; [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000'
    run = orch("submit", "--detach", "-j", "2x1", "--", "sh", "-c", program).stdout.strip()
    until(lambda: orch.printed(run).splitlines()[:2] == ["attempt 1"] * 2, awaited="the first attempt")
    status = orch.status(run)
    cluster.lose_node(status["nodes"][1]["node"])
    cluster.wait_for(orch, run, "PENDING")
    cluster.start_now(status["slurm_job"])
    cluster.wait_for(orch, run, "DONE", deadline_s=120)
    assert _texts(orch, run) == ["attempt 1"] * 2 + ["attempt 2"] * 2


@pytest.mark.extended
def test_job_that_needs_a_drained_node_names_it(orch: Orch, cluster: Cluster) -> None:
    _slurm(cluster, "scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
    run = orch("submit", "--detach", "--nodes", "n1", "--", "true").stdout.strip()
    status_text = until(
        lambda: (text := orch("status", run).stdout) and "drained or do not answer: n1" in text and text,
        awaited="the reason",
    )
    assert "PENDING" in status_text
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_time_limit_fails_the_run_and_is_named(orch: Orch, cluster: Cluster) -> None:
    run, _ = _start_counting(orch)
    with orch.start("logs", "-f", run) as following:
        _slurm(cluster, "scontrol", "update", f"JobId={orch.status(run)['slurm_job']}", "EndTime=now+2")
        _, stderr = following.communicate()
    assert f"run {run} is FAILED" in stderr
    status = orch.status(run)
    assert status["state"] == "FAILED"
    assert status["message"] == "Slurm ended the job: TIMEOUT TimeLimit"
    assert (status["failure"]["kind"], status["failure"]["signature"]) == ("preemption", "slurm-time-limit")
    assert json.loads(orch("diagnose", run, "--json").stdout)["signature"] == "slurm-time-limit"


@pytest.mark.extended
def test_machine_without_squeue_does_not_take_a_running_job_for_lost(orch: Orch) -> None:
    run, enough = _start_counting(orch)
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
