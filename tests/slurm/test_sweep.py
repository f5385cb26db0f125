"""orch submit --sweep on a real Slurm: one array, one run per task, and a table of their results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import orchestrator
from orchestrator.run import RunState
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

SMALL = ("steps=2", "report=", "model.width=16", "model.heads=1", "model.layers=1", "model.context=16", "micro_batch=1")


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of the cluster, and a small text to train on."""
    cluster.inventory(tmp_path)
    text = cluster.folder / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 20)
    text.chmod(0o644)
    return Orch(tmp_path, env=cluster.env)


def _settings(cluster: Cluster) -> tuple[str, ...]:
    return (*SMALL, f"data.paths={cluster.folder / 'text.txt'}")


@pytest.mark.extended
@pytest.mark.train
def test_every_combination_is_a_separate_run_and_list_compares_them(orch: Orch, cluster: Cluster) -> None:
    sweeps = ("--sweep", "lr=1e-3,1e-1", "--sweep", "seed=1")
    sweep = orch("submit", "-j", "1x1", *sweeps, *_settings(cluster)).stdout.strip()
    until(lambda: not cluster.jobs(), awaited="the array to end", deadline_s=100)
    records = json.loads(orch("list", "--sweep", sweep, "--json").stdout)
    assert [(record["state"], record["swept"]) for record in records] == [
        ("DONE", {"lr": lr, "seed": "1"}) for lr in ("1e-3", "1e-1")
    ]
    assert len({record["slurm_job"].partition("_")[0] for record in records}) == 1
    losses = [record["summary"]["last_loss"] for record in records]
    assert len(set(losses)) == 2
    table = orch("list", "--sweep", sweep).stdout
    assert all(f"{loss:.4g}" in table for loss in losses)
    run = records[1]["id"]
    assert "lr=" in orch("logs", run).stdout
    assert f"{losses[1]:.4f}"[:5] in orch("logs", run).stdout


def test_one_run_or_the_whole_sweep_of_a_program_is_stopped(orch: Orch, cluster: Cluster) -> None:
    """At most two of the four runs at a time, each with its own argument."""
    program = ("--", "sh", "-c", 'echo "seed=$1"; exec sleep 1000', "sh", "{seed}")
    words = ("--sweep", "seed=1,2,3,4", "--at-once", "2", "--job-name", "mine")
    sweep = orch("submit", "-j", "1x1", *words, *program).stdout.strip()
    first, second, *waiting = (record["id"] for record in json.loads(orch("list", "--sweep", sweep, "--json").stdout))
    until(lambda: "seed=1" in orch.printed(first), awaited="the first run's line")
    until(lambda: "seed=2" in orch.printed(second), awaited="the second run's line")
    until(
        lambda: [orch.status(run)["queue"]["reason"] for run in waiting] == ["JobArrayTaskLimit"] * 2,
        awaited="Slurm's reason",
    )
    orch("stop", first)
    assert [orch.status(run)["state"] for run in (first, second)] == ["STOPPED", "RUNNING"]
    assert "it is a sweep of 4 runs" in orch("logs", sweep, code=2).stderr
    job = orch.slurm_job(second).partition("_")[0]
    after = ("--after", f"after:{second}", "--after", f"afterany:{sweep}")
    shown = orch("submit", "-j", "1x1", "--dry-run", *after, "--", "true").stdout
    assert f"#SBATCH --dependency=after:{job}_1,afterany:{job}\n" in shown
    assert f"the 4 runs of sweep {sweep}: 4 STOPPED" in orch("stop", sweep).stderr
    assert not cluster.jobs()
    assert orch("status", sweep, code=6).stdout.count("STOPPED") == 4


def test_sweep_whose_terminal_is_closed_during_sbatch_is_recorded(orch: Orch, cluster: Cluster, tmp_path: Path) -> None:
    path = orch.environ()["PATH"]
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nkill -HUP $PPID\nexec {shutil.which("sbatch", path=path)} "$@"\n')
    wrapper.chmod(0o755)
    closed = Orch(tmp_path, env={**cluster.env, "PATH": f"{wrapper.parent}{os.pathsep}{path}"})
    sweep = closed("submit", "-j", "1x1", "--sweep", "seed=1,2", "--", "sleep", "{seed}000").stdout.strip()
    jobs = [record["slurm_job"] for record in orch.records()]  # in the order of their ids, which are random
    assert sorted(job.partition("_")[2] for job in jobs) == ["0", "1"]
    orch("stop", sweep)
    assert not cluster.jobs()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.train
def test_only_the_warned_task_of_an_array_continues_in_another_attempt(orch: Orch, cluster: Cluster) -> None:
    sweep = orch("submit", "-j", "1x1", "--sweep", "steps=3,1000000", *_settings(cluster)[1:]).stdout.strip()
    short, long = (record["id"] for record in json.loads(orch("list", "--sweep", sweep, "--json").stdout))
    until(lambda: "step=" in orch.printed(long), awaited="the first steps", deadline_s=90)
    cluster.wait_for(orch, short, "DONE")
    job = orch.slurm_job(long)
    cluster.signal(job, "USR2")
    cluster.start_soon(job)
    until(lambda: "resuming from" in orch.printed(long), awaited="the second attempt", deadline_s=90)
    assert (orch.status(long)["state"], orch.status(long)["attempt"]) == ("RUNNING", 2)
    assert (orch.status(short)["state"], orch.status(short)["attempt"]) == ("DONE", 1)
    orch("stop", long)
    assert not cluster.jobs()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sweep", "lr=1e-3", "--", "true", "--lr"), "no argument of the program contains {lr}"),
        (("--at-once", "2"), "--at-once is for the runs of a sweep"),
        (("--sweep", "model.layerz=1,2"), "layerz"),
        (("--sweep", "lr=fast,slow"), "lr"),
        (("--sweep", "lr"), "not a setting"),
    ],
)
def test_sweep_that_cannot_run_is_refused_before_anything_is_submitted(
    orch: Orch, cluster: Cluster, words: tuple[str, ...], message: str
) -> None:
    assert message in orch("submit", "-j", "1x1", *words, code=2).stderr
    assert not cluster.jobs()
    assert orch.records() == []


def test_sweep_that_the_cluster_cannot_run_leaves_no_records(orch: Orch, cluster: Cluster) -> None:
    sweep = ("--sweep", "seed=1,2", "-p", "nowhere", "--", "true", "{seed}")
    assert "nowhere is not known" in orch("submit", "-j", "1x1", *sweep, code=2).stderr
    assert orch.records() == []
    assert not cluster.jobs()


def test_sweep_that_sbatch_refuses_leaves_one_record_with_the_reason(orch: Orch, cluster: Cluster) -> None:
    sweep = ("--sweep", "seed=1,2,3", "--set", "slurm.options=--begin=nonsense", "--", "true", "{seed}")
    assert "nonsense" in orch("submit", "-j", "1x1", *sweep, code=4).stderr
    (record,) = orch.records()
    assert (record["state"], record["message"]) == ("FAILED", "sbatch refused the job: Invalid --begin specification")
    assert not cluster.jobs()


def test_script_of_a_sweep_passes_shellcheck(orch: Orch) -> None:
    shown = orch("submit", "-j", "1x1", "--sweep", "seed=1,2", "--dry-run").stdout
    script = shown[shown.index("#!/bin/bash\n#SBATCH") :]
    script = script[: script.index("\nEND_OF_FILE")]
    assert "#SBATCH --array=0-1" in script
    checked = subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_sweep_from_python_returns_its_runs(orch: Orch, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(orch.cwd)
    for name, value in orch.environ().items():
        monkeypatch.setenv(name, value)
    runs = orchestrator.submit("echo value={v}", sweep={"v": [1, 2]}, at_once=1, shape="1x1", no_check=True)
    assert [run.wait(100).state for run in runs] == [RunState.DONE] * 2
    assert [[line.text for line in run.logs(stream="out")] for run in runs] == [["value=1"], ["value=2"]]
    assert [(row["v"], row["state"]) for row in runs.rows()] == [("1", "DONE"), ("2", "DONE")]
    assert [run.id for run in orchestrator.runs(sweep=runs[0].record.sweep)] == [run.id for run in runs]
