"""The program of a launch with --per-node is read for its number of ranks before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.script_ranks import script_warnings
from orchestrator.usecases.launch_arguments import LaunchArguments


def _warnings(folder: Path, *words: str) -> list[str]:
    inventory = Inventory(name="here", nodes=(Node(name="n0", devices=2), Node(name="n1", devices=2)))
    request = Request("ssh", Program("executable", words, "", per_node=True))
    return script_warnings(make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b"), folder)


@pytest.mark.parametrize("words", [("bash", "run.sh"), ("/bin/sh", "-e", "run.sh", "a"), ("./run",), ("run.sh",)])
def test_script_is_read_however_it_is_started(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in ("run.sh", "run"):
        (tmp_path / name).write_text("#!/usr/bin/env bash\ntorchrun --nproc_per_node=3 train.py\n")
    [warning] = _warnings(tmp_path, *words)
    assert ":2 starts 3 ranks on n[0-1] (torchrun), and the launch has 2 there" in warning


def test_typed_line_is_read_and_other_programs_are_not(tmp_path: Path) -> None:
    [warning] = _warnings(tmp_path, "torchrun", "--nproc_per_node", "3", "train.py")
    assert warning.startswith("the command:1 starts 3 ranks")
    [warning] = _warnings(tmp_path, "bash", "-c", "torchrun --nproc_per_node=3 train.py")
    assert "starts 3 ranks" in warning
    (tmp_path / "binary").write_bytes(b"#!/bin/sh\0torchrun --nproc_per_node=3\n")
    (tmp_path / "run.py").write_text("#!/usr/bin/python3\n'torchrun --nproc_per_node=3'\n")
    for words in (("./binary",), ("./run.py",), ("bash", "absent.sh"), ("bash",)):
        assert _warnings(tmp_path, *words) == []


def test_launch_warns_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node=3 train.py\n")
    (tmp_path / "inventory.yaml").write_text("accelerator: cpu\ndevices: 2\nnodes: [{name: n0}]\n")
    words = ("bash", "run.sh")
    planned = plan_launch(LaunchArguments("ssh", None, None, None, None, (), words, per_node=True))
    assert [text for text in planned.warnings if text.startswith("run.sh:1 starts 3 ranks on n0")]


def test_call_of_srun_in_a_script_is_warned_of(tmp_path: Path) -> None:
    """As in the batch scripts of many projects; srun would wait for an allocation while the run holds its nodes."""
    (tmp_path / "run.sh").write_text("#SBATCH -N 2\nsrun torchrun --nproc_per_node=2 train.py\n")
    [warning] = _warnings(tmp_path, "bash", "run.sh")
    assert warning.startswith(
        "run.sh:2 calls srun, which has no allocation within a run and waits for a new one: omit it"
    )
