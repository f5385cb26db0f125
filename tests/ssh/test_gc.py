"""orch gc on real nodes: what it removes and keeps, on the nodes and in the records, and the exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.access import transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.inventory.model import load
from tests.grounds import components
from tests.grounds.cli import Orch
from tests.grounds.marked import guards_of, processes_of, still_alive
from tests.grounds.sshd import Farm
from tests.until import until


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory of two nodes under a separate account, so that no other process here counts as their stray."""
    if not farm.is_own_account:
        components.unavailable(
            "the nodes' account is the one that runs the tests, whose processes gc might end; root makes a separate one"
        )
    farm.inventory(tmp_path, nodes=2)
    return Orch(tmp_path)


def _done(orch: Orch, script: str = "true") -> str:
    """Run to the end and refresh the record; returns the run id."""
    orch("ssh-launch", "--", "sh", "-c", script)
    return str(orch.status()["id"])


def _age(orch: Orch, days: float = 8) -> None:
    """Set the age of all files on the nodes and in the records."""
    then = time.time() - days * 86400
    for root in (_work(orch), orch.home):
        for path in root.rglob("*"):
            os.utime(path, (then, then), follow_symlinks=False)


def _actions(done: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return sorted((entry["at"], entry["kind"], entry["name"], entry["action"]) for entry in done["folders"])


def _work(orch: Orch) -> Path:
    """The folder above the working folders of all nodes."""
    return Path(load(orch.cwd / "inventory.yaml").nodes[0].workdir).parent


def _runs(orch: Orch) -> list[Path]:
    return sorted(_work(orch).glob("n?/runs/*"))


def test_old_runs_are_removed_from_nodes_and_records_and_younger_ones_stay(orch: Orch) -> None:
    old = _done(orch)
    _age(orch)
    young = _done(orch)
    plan = json.loads(orch("gc", "--dry-run", "--json").stdout)
    assert [action for action in _actions(plan) if action[2] == old] == [
        ("-", "record", old, "remove"),
        ("n0", "run", old, "remove"),
        ("n1", "run", old, "remove"),
    ]
    assert len(_runs(orch)) == 4
    done = orch("gc")
    assert len([line for line in done.stdout.splitlines() if old in line and line.rstrip().endswith("removed")]) == 3
    assert young not in done.stdout
    assert [path.name for path in _runs(orch)] == [young] * 2
    assert [path.name for path in (orch.home / "runs").iterdir()] == [young]
    assert orch("logs", young, "--stream", "event").stdout


def test_run_with_results_is_named_with_its_size_and_its_record_stays_too(orch: Orch) -> None:
    script = 'mkdir -p outputs && head -c 2000 /dev/zero > outputs/pytorch_model.bin && head -c 1000 /dev/zero > "$ORCH_RUN_DIR/eval.csv"'
    run = _done(orch, f'if [ "$RANK" = 0 ]; then {script}; fi')
    _age(orch)
    kept = [line for line in orch("gc").stdout.splitlines() if "kept" in line]
    assert [line.split()[:2] for line in kept] == [["n0", "run"], ["n0", "bundle"], ["-", "record"]]
    assert "holds results: code/outputs/, eval.csv (3.0 kB)" in kept[0]
    assert "its folder on n0 stays" in kept[2]
    assert [path.parent.parent.name for path in _runs(orch)] == ["n0"]
    orch("gc", "--results")
    assert _runs(orch) == []
    assert orch("list").stdout.count(run) == 0


def test_running_run_stays_whatever_the_age(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    _age(orch)
    before = processes_of(run)
    orch("gc", "--older-than", "0s")
    assert still_alive(before) == before
    assert len(_runs(orch)) == 2
    assert orch.status(run)["state"] == "RUNNING"


def test_unreachable_node_is_named_with_code_4_and_the_rest_is_done(orch: Orch) -> None:
    _done(orch)
    _age(orch)
    text = (orch.cwd / "inventory.yaml").read_text("utf-8").replace("name: n1", "name: n1\n  port: 1")
    (orch.cwd / "inventory.yaml").write_text(text, "utf-8")
    done = orch("gc", "-i", "inventory.yaml", code=4)
    assert re.search(r"n1: .*\(1 of 2\)$", done.stderr, re.MULTILINE)
    assert [path.parent.parent.name for path in _runs(orch)] == ["n1"]
    assert "n1 was not searched" in done.stdout, "the record is needed to find the rest on its nodes"
    assert "no node n7 would be searched" in orch("gc", "--forget", "n7", code=2).stderr
    assert "working folders searched: 1" in orch("gc", "--forget", "n1").stderr
    assert [path.parent.parent.name for path in _runs(orch)] == ["n1"]
    assert list((orch.home / "runs").iterdir()) == []


def test_stray_of_a_killed_agent_is_ended_and_listed(orch: Orch) -> None:
    """Through the endpoint: the command itself spares processes younger than a minute, which a launch may just be starting."""
    (orch.cwd / "ignore-term.sh").write_text(
        "(setsid sh -c 'trap \"\" TERM; echo up; sleep 1001; sleep 1002' &)\nexec sleep 1003"
    )
    run = orch("ssh-launch", "--nodes", "n0", "--detach", "--", "sh", "./ignore-term.sh").stdout.strip()
    until(lambda: len(processes_of(run)) == 5, awaited="guard, agent, rank and daemon with a child")
    ((guard, agent),) = guards_of(run).items()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (guard, agent):
            os.kill(pid, number)
    until(lambda: len(processes_of(run)) == 2, awaited="the strays alone")
    assert json.loads(orch("gc", "--json").stdout)["strays"] == []
    inventory = load(orch.cwd / "inventory.yaml")
    transport = transport_factory("ssh", inventory.ssh)
    with Endpoint.connect(transport(inventory.nodes[1]), inventory.nodes[1].python) as endpoint:
        found = endpoint.strays(min_age_s=0, grace_s=0.2, dry_run=True)
        assert (len(found["strays"]), len(processes_of(run))) == (2, 2)
        ended = endpoint.strays(min_age_s=0, grace_s=0.2, dry_run=False)
    assert {(stray["run"], stray["node"], stray["alive"]) for stray in ended["strays"]} == {(run, "n0", False)}
    assert {stray["command"] for stray in ended["strays"]} == {"sh", "sleep"}
    assert not processes_of(run)


@pytest.mark.processes
@pytest.mark.parametrize("span", ["7", "-1d", "1w", "", "soon"])
def test_invalid_span_is_refused_with_the_allowed_forms(tmp_path: Path, span: str) -> None:
    done = Orch(tmp_path)("gc", "--older-than", span, code=2)
    assert "--older-than" in done.stderr
    assert "30s, 5m, 2h or 1d" in done.stderr


@pytest.mark.processes
def test_gc_without_runs_and_inventory_names_the_option_for_an_inventory(tmp_path: Path) -> None:
    done = Orch(tmp_path)("gc")
    assert "-i FILE" in done.stderr
    assert done.stdout == ""


def test_damaged_record_is_named_and_kept_and_other_runs_are_removed(orch: Orch) -> None:
    damaged, intact = _done(orch), _done(orch)
    (orch.home / "runs" / damaged / "run.json").write_text("torn")
    (orch.home / "runs" / damaged / "plan" / "plan.json").write_text("torn")
    _age(orch)
    done = orch("gc")
    assert "plan.json cannot be read" in done.stderr
    assert [path.name for path in (orch.home / "runs").iterdir()] == [damaged]
    assert intact in done.stdout
