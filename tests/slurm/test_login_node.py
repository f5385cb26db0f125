"""orch submit from a laptop without Slurm, through an ssh login on a machine that has it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.until import until

PROFILE = (
    "SBATCH_JOB_NAME=interactive SBATCH_TIMELIMIT=3 SBATCH_WCKEY=ours SLURM_TIME_FORMAT=relative SLURM_CLUSTERS=other"
)
LOGIN = "n7"  # an alias of the farm's ssh_config; no node of the cluster has this name
COUNT = 'i=0; while [ "$i" -lt 2000 ]; do i=$((i+1)); echo "line $i of $RANK"; [ $((i%10)) != 0 ] || sleep 0.03; done'


@pytest.fixture
def laptop(cluster: Cluster, farm: Farm, tmp_path: Path) -> Orch:
    """orch without Slurm, beside an inventory.yaml whose login node finds the cluster through its profile alone."""
    profile = farm.home / ".bash_profile"
    profile.write_text(f"echo welcome\nexport SLURM_CONF={cluster.conf} PATH=~/bin:$PATH\n", "utf-8")
    profile.chmod(0o644)
    write_login_inventory(tmp_path, farm)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    return Orch(tmp_path, env={"PATH": str(nothing), "SLURM_CONF": "/nowhere/slurm.conf"})


def write_login_inventory(folder: Path, farm: Farm, **extra: object) -> None:
    base = {
        "name": "cluster",
        "accelerator": "cpu",
        "devices": 1,
        "defaults": {"python": str(farm.python), "workdir": f"~/{folder.name}"},
        "ssh": {"config": str(farm.ssh_config)},
        "slurm": {"partition": "debug", "time": "00:10:00", "login": LOGIN},
        "nodes": [{"name": "n[0-3]", "address": "127.0.0.[10-13]"}],
    }
    write_inventory(folder / "inventory.yaml", base, extra)


def attempt_of(farm: Farm, laptop: Orch, run: str) -> Path:
    return farm.home / laptop.cwd.name / "runs" / run / "attempt-1"


def put_program(farm: Farm, name: str, text: str) -> None:
    """Write a program that a login finds before the real one of that name."""
    folder = farm.home / "bin"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture(autouse=True)
def _remove_programs(farm: Farm) -> None:
    for path in (farm.home / "bin").glob("*"):
        path.unlink()


def test_submission_log_and_verdict_use_one_connection(laptop: Orch, farm: Farm) -> None:
    with farm.counted() as connections:
        done = laptop("submit", "-j", "2x1", "--", "sh", "-c", 'echo "up on $ORCH_NODE"')
        assert connections() == 1
    assert len(re.findall(r"^\[n\d:\d\] up on n\d$", done.stdout, re.MULTILINE)) == 2
    status = laptop.status()
    assert (status["state"], len(status["nodes"])) == ("DONE", 2)
    assert attempt_of(farm, laptop, status["id"]).is_dir()


def test_detached_job_has_status_logs_and_can_be_stopped(laptop: Orch, cluster: Cluster) -> None:
    run = laptop("submit", "--detach", "-j", "2x1", "--", "sh", "-c", "echo up; exec sleep 1000").stdout.strip()
    until(lambda: sum(line["text"] == "up" for line in laptop.lines(run)) == 2, awaited="two ranks")
    status = laptop.status(run)
    assert status["state"] == "RUNNING"
    assert list(cluster.jobs()) == [status["slurm_job"]]
    assert [record["id"] for record in laptop.records()] == [run]
    laptop("stop", run)
    assert laptop.status(run)["state"] == "STOPPED"
    assert not cluster.jobs()


def test_failing_rank_fails_the_run_with_its_code(laptop: Orch) -> None:
    laptop("submit", "-j", "2x1", "--", "sh", "-c", 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 1000', code=1)
    status = laptop.status()
    assert (status["state"], status["exit"]["rank"], status["exit"]["code"]) == ("FAILED", 1, 7)
    log = laptop("logs", "--stream", "batch").stdout
    assert "[batch:-] srun: error: " in log
    assert "cpu binding" not in log  # printed by srun, since the cluster has no TaskPlugin


@pytest.mark.extended
def test_log_is_read_on_a_machine_without_the_record(laptop: Orch) -> None:
    laptop("submit", "-j", "1x1", "--", "echo", "hello")
    run = laptop.records()[-1]["id"]
    elsewhere = Orch(laptop.cwd, {**laptop.env, "ORCH_HOME": str(laptop.cwd / "elsewhere")})
    assert "] hello" in elsewhere("logs", run, "-i", "inventory.yaml").stdout
    assert f"run {run} is DONE" in elsewhere("logs", "-f", run, "-i", "inventory.yaml").stderr


@pytest.mark.extended
def test_gc_cleans_the_working_folder_of_the_login_node(laptop: Orch, farm: Farm) -> None:
    laptop("submit", "-j", "1x1", "--", "true")
    run = laptop.records()[-1]["id"]
    then = 1_600_000_000
    for root in (farm.home / laptop.cwd.name, laptop.home):
        for path in root.rglob("*"):
            os.utime(path, (then, then), follow_symlinks=False)
    plan = json.loads(laptop("gc", "--dry-run", "--json").stdout)
    folders = {(entry["kind"], entry["name"]): (entry["action"], entry["at"]) for entry in plan["folders"]}
    assert folders["run", run] == ("remove", LOGIN)
    assert folders["record", run] == ("remove", "-")


def test_dry_run_names_the_login_node_and_makes_no_connection(laptop: Orch, farm: Farm) -> None:
    with farm.down():
        text = laptop("submit", "--dry-run", "-j", "2x1", "--", "true").stdout
    assert f"login node {LOGIN}" in text
    assert '"$HOME"' in text


@pytest.mark.extended
def test_login_node_on_which_orch_runs_is_not_logged_in_to(cluster: Cluster, farm: Farm, tmp_path: Path) -> None:
    name = os.uname().nodename
    cluster.inventory(tmp_path, slurm={"login": name}, ssh={"config": str(farm.ssh_config)})
    with farm.counted() as connections:
        Orch(tmp_path, env=cluster.env)("submit", "-j", "1x1", "--", "true")
        assert connections() == 0


@pytest.mark.extended
def test_login_node_is_used_though_the_laptop_has_slurm(laptop: Orch, cluster: Cluster, farm: Farm) -> None:
    with farm.counted() as connections:
        Orch(laptop.cwd, env=cluster.env)("submit", "-j", "1x1", "--", "true")
        assert connections() == 1


def test_unknown_partition_is_refused_before_any_file_is_written(laptop: Orch, farm: Farm) -> None:
    write_login_inventory(laptop.cwd, farm, slurm={"partition": "nope"})
    done = laptop("submit", "--", "true", code=2)
    assert "nope is not known to this cluster" in done.stderr
    assert not (farm.home / laptop.cwd.name).exists()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--licenses=nope", "license"),
        ("--mem=64G", "sbatch refused the job: Memory specification can not be satisfied"),
    ],
)
def test_sbatchs_refusal_is_quoted(laptop: Orch, farm: Farm, cluster: Cluster, option: str, words: str) -> None:
    write_login_inventory(laptop.cwd, farm, slurm={"options": [option]})
    done = laptop("submit", "--", "true", code=4)
    assert "sbatch refused the job" in done.stderr
    assert words in done.stderr
    record = laptop.records()[-1]
    assert record["state"] == "FAILED"
    assert words in record["message"]
    assert not cluster.jobs()


def test_login_node_without_slurm_is_refused_before_any_file_is_written(laptop: Orch, farm: Farm) -> None:
    (farm.home / ".bash_profile").write_text("PATH=/nowhere\n", "utf-8")
    done = laptop("submit", "--", "true", code=4)
    assert f"{LOGIN}: sbatch cannot be run there" in done.stderr
    assert not (farm.home / laptop.cwd.name).exists()


def test_login_node_that_is_down_ends_the_launch_with_nothing_submitted(
    laptop: Orch, farm: Farm, cluster: Cluster
) -> None:
    with farm.down():
        done = laptop("submit", "--", "true", code=4)
    assert LOGIN in done.stderr
    assert laptop.records()[-1]["state"] == "FAILED"
    assert not cluster.jobs()


@pytest.mark.extended
@pytest.mark.slow
def test_no_line_is_lost_when_the_login_node_fails_while_following(laptop: Orch, farm: Farm, cluster: Cluster) -> None:
    """First the connection alone, then the machine until the job has ended."""
    lines: list[str] = []
    with laptop.start("submit", "-j", "2x1", "--", "sh", "-c", COUNT) as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        for awaited_line in ("line 100 of 0", "line 400 of 0"):
            while awaited_line not in (line := watcher.stdout.readline()):
                assert line, "the log ended"
                lines.append(line)
            lines.append(line)
            farm.drop_connections()
        with farm.down():
            until(lambda: not cluster.jobs(), awaited="the job to end while the login node is down")
        text, stderr = "".join([*lines, watcher.stdout.read()]), watcher.stderr.read()
    assert watcher.returncode == 0, stderr
    assert "trying again" in stderr
    for rank in (0, 1):
        printed = re.findall(rf"^\[n\d:{rank}\] (line .*)$", text, re.MULTILINE)
        assert printed == [f"line {number} of {rank}" for number in range(1, 2001)]


SLOW = 'echo once >>"$HOME/sbatch-calls"; id=$(/usr/bin/sbatch "$@") || exit; until [ -e "$HOME/answer" ]; do sleep 0.05; done; echo "$id"'


@pytest.fixture
def slow_sbatch(farm: Farm) -> Path:
    """An sbatch that submits, and prints the id once the returned file exists; it records every call in `sbatch-calls` beside it."""
    for name in ("sbatch-calls", "answer"):
        (farm.home / name).unlink(missing_ok=True)
    put_program(farm, "sbatch", f'if [ "$1" = --version ]; then exit 0; fi; {SLOW}')
    return farm.home / "answer"


def test_connection_that_is_lost_before_sbatch_answers_makes_no_second_job(
    laptop: Orch, farm: Farm, cluster: Cluster, slow_sbatch: Path
) -> None:
    with laptop.start("submit", "-j", "1x1", "--", "echo", "ran") as launch:
        until(cluster.jobs, awaited="the job")
        farm.drop_connections()
        until(lambda: len(farm.connections()) > 1, awaited="another connection")
        slow_sbatch.touch()
        out, err = launch.communicate(timeout=60)
    assert launch.returncode == 0, err
    assert out.count(":0] ran") == 1
    assert (farm.home / "sbatch-calls").read_text("utf-8") == "once\n"


@pytest.mark.extended
def test_job_id_is_not_read_from_a_note_of_the_site_and_stop_cancels_no_job_in_another_folder(
    laptop: Orch, farm: Farm, cluster: Cluster
) -> None:
    sbatch = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000"]
    foreign_job = subprocess.run(sbatch, env=cluster.env, check=True, capture_output=True, text=True).stdout.strip()
    put_program(farm, "sbatch", f'echo "Note: your job {foreign_job} uses 3% of the CPUs"; exec /usr/bin/sbatch "$@"')
    run = laptop("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    [job] = set(cluster.jobs()) - {foreign_job}
    record = laptop.home / "runs" / run / "run.json"
    recorded = json.loads(record.read_text("utf-8"))
    assert recorded["slurm_job"] == job
    record.write_text(json.dumps(recorded | {"slurm_job": foreign_job}))
    assert f"Slurm job {foreign_job} (wrap) does not run in the folder of {run}" in laptop("stop", run, code=4).stderr
    assert set(cluster.jobs()) == {foreign_job, job}
    record.write_text(json.dumps(recorded))
    laptop("stop", run)
    assert list(cluster.jobs()) == [foreign_job]


@pytest.mark.extended
def test_variables_of_a_login_profile_neither_rename_the_job_nor_override_the_inventory(
    laptop: Orch, farm: Farm, cluster: Cluster
) -> None:
    """For sbatch itself they override #SBATCH lines."""
    profile = farm.home / ".bash_profile"
    profile.write_text(f"{profile.read_text('utf-8')}export {PROFILE}\n", "utf-8")
    submitted = laptop("submit", "--detach", "-j", "1x1", "--", "sleep", "1000")
    run = submitted.stdout.strip()
    show = ["squeue", "--noheader", "--format=%j %l %w"]
    listed = subprocess.run(show, env=cluster.env, check=True, capture_output=True, text=True).stdout
    assert listed == f"{run} 10:00 ours\n"
    assert f"SBATCH_WCKEY=ours, set on {LOGIN}, applies to the job" in submitted.stderr
    laptop("stop", run)
    assert not cluster.jobs()


@pytest.mark.extended
def test_job_whose_sbatch_was_killed_before_it_answered_is_found_by_its_folder(
    laptop: Orch, farm: Farm, cluster: Cluster
) -> None:
    kill = 'if [ "$1" = --version ]; then exit 0; fi; /usr/bin/sbatch "$@" >/dev/null; kill -KILL $$'
    put_program(farm, "sbatch", kill)
    run = laptop("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    assert [laptop.status(run)["slurm_job"]] == list(cluster.jobs())
    laptop("stop", run)


@pytest.mark.extended
def test_job_that_sbatch_submits_after_ctrl_c_is_cancelled(laptop: Orch, farm: Farm, cluster: Cluster) -> None:
    """The command on the login node does not end with its connection."""
    started, gate = farm.home / "sbatch-started", farm.home / "answer"
    for path in (started, gate):
        path.unlink(missing_ok=True)
    wait = 'touch "$HOME/sbatch-started"; until [ -e "$HOME/answer" ]; do sleep 0.05; done; exec /usr/bin/sbatch "$@"'
    put_program(farm, "sbatch", f'if [ "$1" = --version ]; then exit 0; fi; {wait}')
    with laptop.start("submit", "-j", "1x1", "--", "sleep", "1000") as launch:
        until(started.exists, awaited="sbatch to begin")
        launch.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launch.wait(timeout=4)  # an orch that asked only squeue would have ended by then
        [attempt] = (farm.home / laptop.cwd.name / "runs").glob("*/attempt-1")
        gate.touch()
        until((attempt / "submission.json").read_text, awaited="the answer of sbatch")
        _, err = launch.communicate(timeout=60)
    assert launch.returncode == 4, err
    assert laptop.records()[-1]["state"] == "STOPPED"
    assert not cluster.jobs()
