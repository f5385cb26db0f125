"""
What every shipped inventory turns into, word for word.

After a wanted change: `pytest tests/golden --update`, then read the diff.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from orchestrator import inventory as inventories
from orchestrator import plan as plans
from orchestrator import transcript
from orchestrator.inventory import Inventory
from orchestrator.plan import LaunchPlan
from orchestrator.resources import inventory_folder
from orchestrator.run import LauncherName, Program, Request
from tests.grounds import components

INVENTORIES = ("h800", "h800-roce", "t20", "local")
LAUNCHERS: tuple[LauncherName, ...] = ("slurm", "ssh")
PROGRAMS = {
    "trainer": Program("trainer", ("steps=20", "model.layers=4")),
    "program": Program("python", ("train.py", "--n", "3", 'a b$c "d"'), "sub dir"),
}
# Inventories of their own, which say all that they can say of Slurm.
FULL = [(name, "slurm", "program", 2) for name in ("slurm-pyxis", "slurm-apptainer", "slurm-spares")]
CASES = [*product(INVENTORIES, LAUNCHERS, PROGRAMS, (1, 16)), *FULL]


def _inventory(name: str, nodes: int) -> Inventory:
    """The shipped inventory, or the one that lies here, with that many nodes and a Python that is not this machine's."""
    folder = inventory_folder() if name in INVENTORIES else Path(__file__).parent
    inventory = inventories.load(folder / f"{name}.yaml")
    first = inventory.nodes[0].model_copy(update={"python": "/opt/conda/bin/python3"})
    copies = [
        first.model_copy(update={"name": f"{name}-{k:02}", "address": f"10.0.0.{k + 1}"}) if k else first
        for k in range(nodes)
    ]
    return inventory.model_copy(update={"nodes": tuple(copies)})


def _plan(name: str, launcher: LauncherName, program: str, nodes: int) -> LaunchPlan:
    request = Request(launcher, PROGRAMS[program])
    run_id = f"{name}-20260102-030405-0abc"
    return plans.make_plan(_inventory(name, nodes), request, run_id=run_id, bundle="0" * 32, home="/home/train")


@pytest.mark.parametrize(("name", "launcher", "program", "nodes"), CASES)
def test_transcript_is_as_recorded(
    name: str, launcher: LauncherName, program: str, nodes: int, golden: Callable[[str, str], None]
) -> None:
    """A change of any file or command that a launch makes shows up in review."""
    golden(f"{name}/{launcher}-{program}-{nodes:02}.sh", transcript.of(_plan(name, launcher, program, nodes)))


@pytest.mark.parametrize(("name", "launcher", "program", "nodes"), CASES)
def test_rendered_scripts_pass_shellcheck(
    name: str, launcher: LauncherName, program: str, nodes: int, tmp_path: Path
) -> None:
    """The transcript as a whole, and every script in it on its own."""
    plan = _plan(name, launcher, program, nodes)
    scripts = {"transcript.sh": transcript.of(plan)}
    for node, files in plans.node_files(plan).items():
        for file in files:
            if not file.path.endswith(".json"):
                scripts[f"{node}-{Path(file.path).name}"] = file.text
    for file_name, text in scripts.items():
        (tmp_path / file_name).write_text(text, "utf-8")
    command = [components.program("shellcheck"), "--norc", *sorted(str(tmp_path / script) for script in scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "launcher", "program", "nodes"), CASES)
def test_values_nobody_set_are_not_rendered(name: str, launcher: LauncherName, program: str, nodes: int) -> None:
    """No `--partition=`, no `export X=`, no None."""
    text = transcript.of(_plan(name, launcher, program, nodes))
    assert not re.search(r"export \w+=$|--[\w-]+=(\s|$)|\bNone\b|=''", text, re.MULTILINE)
