"""orch list --all: the states of all runs, with one call of squeue."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

RECORDS = 200


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    """orch with a squeue that records every call."""
    folder, real = tmp_path / "bin", shutil.which("squeue", path=cluster.env.get("PATH"))
    folder.mkdir()
    (folder / "squeue").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\nexec {real} "$@"\n')
    (folder / "squeue").chmod(0o700)
    cluster.inventory(tmp_path, slurm={"options": ["--exclusive"]})
    variables = {"SQUEUE_PARTITION": "nope", "SQUEUE_USERS": "nobody", "PATH": f"{folder}:{os.environ['PATH']}"}
    return Orch(tmp_path, env={**cluster.env, **variables})


def _calls(orch: Orch) -> list[str]:
    file = orch.cwd / "calls"
    calls = file.read_text("utf-8").splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return calls


def _states(orch: Orch, *words: str) -> dict[str, str]:
    return {record["id"]: record["state"] for record in json.loads(orch("list", "--json", *words).stdout)}


def test_run_that_ended_unobserved_is_listed_with_its_final_state(orch: Orch, cluster: Cluster) -> None:
    done, failed = (
        orch("submit", "--detach", "-j", "1x1", "--", "sh", "-c", line).stdout.strip()
        for line in ("true", "echo lost >&2; false")
    )
    until(lambda: not cluster.jobs(), awaited="the jobs to end")
    before = _states(orch)
    assert not {before[done], before[failed]} & {"DONE", "FAILED"}
    _calls(orch)
    assert {done: "DONE", failed: "FAILED"}.items() <= _states(orch, "--all").items()
    assert len(_calls(orch)) == 1
    assert {done: "DONE", failed: "FAILED"}.items() <= _states(orch).items()
    orch("list", "--all")
    assert _calls(orch) == []  # no run is active
    assert orch.status(failed)["exit"]["lines"] == ["lost"]


def test_run_with_a_damaged_plan_is_named_and_the_others_are_listed_with_their_states(
    orch: Orch, cluster: Cluster
) -> None:
    damaged, whole = (orch("submit", "--detach", "-j", "1x1", "--", "true").stdout.strip() for _ in range(2))
    until(lambda: not cluster.jobs(), awaited="the jobs to end")
    (orch.home / "runs" / damaged / "plan" / "plan.json").unlink()
    listed = orch("list", "--all", "--json")
    assert f"warning: {damaged}: " in listed.stderr
    assert {record["id"]: record["state"] for record in json.loads(listed.stdout)}[whole] == "DONE"


def test_list_of_hundreds_of_runs_calls_squeue_once(orch: Orch, cluster: Cluster) -> None:
    runs = [orch("submit", "--detach", "-j", "4x1", "--", "sleep", "1000").stdout.strip() for _ in range(2)]
    until(lambda: sorted(cluster.jobs().values()) == ["PENDING", "RUNNING"], awaited="one to run")
    for number in range(RECORDS):
        source = orch.home / "runs" / runs[number % 2]
        copied = source.with_name(f"{source.name[:-4]}{number:04x}")
        shutil.copytree(source, copied)
        record = json.loads((copied / "run.json").read_text("utf-8"))
        state = "RUNNING" if number % 2 == 0 else ("STARTING", "LOST")[number % 4 == 3]
        (copied / "run.json").write_text(json.dumps(record | {"id": copied.name, "state": state}), "utf-8")
    _calls(orch)
    states = _states(orch, "--all")
    assert len(_calls(orch)) == 1
    assert sorted(states.values()) == ["PENDING"] * (RECORDS // 2 + 1) + ["RUNNING"] * (RECORDS // 2 + 1)
    assert "other jobs of higher priority" in orch("list").stdout or "not free yet" in orch("list").stdout
