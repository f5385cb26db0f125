"""orch submit --sweep on a real Slurm: one array, one run a task, and what they came to side by side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.train
def test_every_combination_is_a_run_of_its_own_and_they_are_compared(orch: Orch, cluster: Cluster) -> None:
    sweeps = ("--sweep", "lr=1e-3,1e-1", "--sweep", "seed=1,2")
    sweep = orch("submit", "-j", "1x1", *sweeps, *_settings(cluster)).stdout.strip()
    until(lambda: not cluster.jobs(), awaited="the array to be over", deadline_s=100)
    records = json.loads(orch("list", "--sweep", sweep, "--json").stdout)
    assert [(one["state"], one["swept"]) for one in records] == [
        ("DONE", {"lr": lr, "seed": seed}) for lr in ("1e-3", "1e-1") for seed in ("1", "2")
    ]
    assert len({one["slurm_job"].partition("_")[0] for one in records}) == 1
    losses = [one["summary"]["last_loss"] for one in records]
    assert len(set(losses)) == 4
    table = orch("list", "--sweep", sweep).stdout
    assert all(f"{loss:.4g}" in table for loss in losses)
    run = records[2]["id"]
    assert "lr=" in orch("logs", run).stdout
    assert f"{losses[2]:.4f}"[:5] in orch("logs", run).stdout


def test_one_run_of_a_sweep_is_stopped_and_the_others_go_on(orch: Orch, cluster: Cluster) -> None:
    sweep = orch("submit", "-j", "1x1", "--sweep", "seed=1,2", "steps=1000000", *_settings(cluster)[1:]).stdout.strip()
    first, second = (one["id"] for one in json.loads(orch("list", "--sweep", sweep, "--json").stdout))
    cluster.wait_for(orch, second, "RUNNING")
    orch("stop", first)
    assert [orch.status(run)["state"] for run in (first, second)] == ["STOPPED", "RUNNING"]
    orch("stop", second)
    assert orch.status(second)["state"] == "STOPPED"
    assert not cluster.jobs()


@pytest.mark.train
def test_of_an_array_the_task_that_was_warned_goes_on_in_another_attempt_and_no_other(
    orch: Orch, cluster: Cluster
) -> None:
    sweep = orch("submit", "-j", "1x1", "--sweep", "steps=3,1000000", *_settings(cluster)[1:]).stdout.strip()
    short, long = (one["id"] for one in json.loads(orch("list", "--sweep", sweep, "--json").stdout))
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
    ("words", "why"),
    [
        (("--sweep", "lr=1e-3", "--", "train.py"), "shared trainer"),
        (("--sweep", "model.layerz=1,2"), "layerz"),
        (("--sweep", "lr=fast,slow"), "lr"),
        (("--sweep", "lr"), "not a setting"),
    ],
)
def test_sweep_that_cannot_run_is_refused_before_anything_is_submitted(
    orch: Orch, cluster: Cluster, words: tuple[str, ...], why: str
) -> None:
    assert why in orch("submit", "-j", "1x1", *words, code=2).stderr
    assert not cluster.jobs()
    assert orch.records() == []


def test_sweep_that_slurm_refuses_has_failed_with_all_of_its_runs(orch: Orch, cluster: Cluster) -> None:
    inventory = orch.cwd / "inventory.yaml"
    inventory.write_text(inventory.read_text("utf-8").replace("partition: debug", "partition: nowhere"))
    assert "nowhere" in orch("submit", "-j", "1x1", "--sweep", "seed=1,2", *_settings(cluster), code=2).stderr
    assert [record["state"] for record in orch.records()] == ["FAILED", "FAILED"]
    assert not cluster.jobs()


def test_script_of_a_sweep_passes_shellcheck(orch: Orch) -> None:
    shown = orch("submit", "-j", "1x1", "--sweep", "seed=1,2", "--dry-run").stdout
    script = shown[shown.index("#!/bin/bash\n#SBATCH") :]
    script = script[: script.index("\nEND_OF_FILE")]
    assert "#SBATCH --array=0-1" in script
    checked = subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
