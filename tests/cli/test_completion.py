"""Shell completion of commands, runs, nodes and inventories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from orchestrator.cli.app import app
from orchestrator.inventory.model import load
from orchestrator.plan.make import make_plan
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState

RUN, NEWER_RUN = "gpt-20260102-030405-0abc", "bert-20260102-030406-0abc"
LABELS: dict[str, Any] = {"tags": ("base", "lr"), "sweep": "rates"}
INVENTORY = "name: here\naccelerator: cpu\ntransport: local\ndevices: 1\nnodes: [{name: 'NAME[0-1]'}]\n"


def _completed(*words: str) -> list[str]:
    *typed, beginning = words
    found = ShellComplete(app, {}, "orch", "_ORCH_COMPLETE").get_completions(typed, beginning)
    return [item.value for item in found]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an inventory of a0 and a1, another one of b0 and b1, and two runs on the latter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    (tmp_path / "inventory.yaml").write_text(INVENTORY.replace("NAME", "a"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yml").write_text(INVENTORY.replace("NAME", "b"))
    (tmp_path / "sub" / "notes.txt").touch()
    plan = make_plan(
        load(tmp_path / "sub" / "b.yml"), Request("ssh", Program("executable", ("true",))), run_id=RUN, bundle="0"
    )
    for run in (RUN, NEWER_RUN):
        record = RunRecord(run, "ssh", RunState.DONE, "2026-01-02T03:04:05+00:00", {}, {}, {}, {}, **LABELS)
        Store(tmp_path / "home").create(record).write_plan(plan)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("s",), ["ssh-launch", "submit", "status", "stop", "stats", "settings", "ssh"]),
        (("status", "g"), ["gpt", RUN]),
        (("stop", "latest"), ["latest"]),
        (("logs", RUN, "--node", ""), ["b0", "b1"]),
        (("logs", "--node", "b1,b"), ["b1,b0", "b1,b1"]),
        (("logs", "nothing", "--node", ""), []),
        (("cp", f"{RUN}:x", "--node", "b1"), ["b1"]),
        (("ssh-launch", "--nodes", "a"), ["a0", "a1"]),
        (("ssh-launch", "-i", "sub/b.yml", "--nodes", ""), ["b0", "b1"]),
        (("ssh-launch", "-i", "no.yaml", "--nodes", ""), []),
        (("ssh", "a"), ["a0", "a1"]),
        (("submit", "-i", "h800"), ["h800", "h800-roce"]),
        (("submit", "-i", "inv"), ["inventory.yaml"]),
        (("submit", "-i", "s"), ["sub/"]),
        (("submit", "-i", "sub/"), ["sub/b.yml"]),
        (("submit", "-i", "no/"), []),
        pytest.param(("ssh-launch", "optim.warm"), ["optim.warmup_steps="], marks=pytest.mark.processes),
        pytest.param(("settings", "save_st"), ["save_steps"], marks=pytest.mark.processes),
        (("check", "--skip", "gpu"), []),
        (("check", "--skip", "outs"), ["outside"]),
        (("list", "--tag", "b"), ["base"]),
        (("list", "--sweep", ""), ["rates"]),
        (("logs", "--stream", "e"), ["err", "event"]),
        (("cp", "gp"), ["gpt:", f"{RUN}:"]),
        (("diagnose", "ber"), ["bert", NEWER_RUN, "ber"]),  # the last one lets the shell complete files
        (("inventory", "import", "s"), ["ssh-config", "scontrol"]),
    ],
)
def test_names_are_completed(words: tuple[str, ...], completed: list[str]) -> None:
    assert _completed(*words) == completed


def test_without_runs_and_inventory_nothing_is_completed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(folder / "empty"))
    monkeypatch.chdir(folder / "sub")
    assert [_completed("status", ""), _completed("ssh", ""), _completed("logs", "--node", "")] == [[], [], []]
