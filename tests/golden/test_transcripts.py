"""
The exact transcripts of launches: golden files for the inventories that differ, assertions for the small rest.

After an intended change: `pytest tests/golden --update`, then read the diff.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.plan.files import node_files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.resources import inventory_folder
from orchestrator.run import LauncherName, Program, Request
from orchestrator.usecases.launch import transcript
from tests.grounds import components

SHIPPED = {"h800": 2, "h800-roce": 2, "t20": 2, "local": 1}  # nodes
# Inventories in this folder with every Slurm field.
FULL = ("slurm-pyxis", "slurm-apptainer", "slurm-spares")
LAUNCHERS: tuple[LauncherName, ...] = ("ssh", "slurm")
CASES: list[tuple[str, LauncherName]] = [*product(SHIPPED, LAUNCHERS), *((name, "slurm") for name in FULL)]
# The other three Slurm transcripts follow from DIRECTIVES and the files for SSH.
RECORDED = [case for case in CASES if case[1] == "ssh" or case[0] in ("h800", *FULL)]
DIRECTIVES = {
    "h800": ["--partition=gpu", "--time=1-00:00:00", "--gres=gpu:8", "--exclusive"],
    "h800-roce": ["--partition=gpu", "--time=1-00:00:00", "--gres=gpu:8", "--exclusive"],
    "t20": ["--partition=t20", "--time=1-00:00:00", "--gres=gcu:8", "--exclusive"],
    "local": ["--cpus-per-task=2"],
}
TRAINER = Program("trainer", ("steps=20", "model.layers=4"))
PROGRAM = Program("python", ("train.py", "--n", "3", 'a b$c "d"'), "sub dir")
DEVICES = {"h800": "cuda", "h800-roce": "cuda", "t20": "gcu", "local": "cpu"}


def _inventory(name: str, nodes: int) -> Inventory:
    """The shipped inventory, or the one in this folder, with `nodes` nodes and a Python that is not this machine's."""
    folder = inventory_folder() if name in SHIPPED else Path(__file__).parent
    inventory = inventories.load(folder / f"{name}.yaml")
    first = inventory.nodes[0].model_copy(update={"python": "/opt/conda/bin/python3"})
    copies = [
        first.model_copy(update={"name": f"{name}-{k:02}", "address": f"10.0.0.{k + 1}"}) if k else first
        for k in range(nodes)
    ]
    return inventory.model_copy(update={"nodes": tuple(copies)})


def _plan(name: str, launcher: LauncherName, program: Program = PROGRAM, nodes: int = 0) -> LaunchPlan:
    run_id = f"{name}-20260102-030405-0abc"
    inventory = _inventory(name, nodes or SHIPPED.get(name, 2))
    return make_plan(inventory, Request(launcher, program), run_id=run_id, bundle="0" * 32, home="/home/train")


def _exports(plan: LaunchPlan) -> list[str]:
    return re.findall("^export .*$", transcript.dry_run_text(plan), re.MULTILINE)


@pytest.mark.parametrize(("name", "launcher"), RECORDED)
def test_transcript_equals_its_golden_file(
    name: str, launcher: LauncherName, golden: Callable[[str, str], None]
) -> None:
    """Any change of a file or command of a launch shows up in review."""
    golden(f"{name}-{launcher}.sh" if name in SHIPPED else f"{name}.sh", transcript.dry_run_text(_plan(name, launcher)))


@pytest.mark.parametrize("name", SHIPPED)
def test_slurm_gets_the_environment_of_ssh_and_the_slurm_settings_of_the_inventory(name: str) -> None:
    under_slurm = _plan(name, "slurm")
    assert _exports(under_slurm) == _exports(_plan(name, "ssh"))[: len(_exports(under_slurm))]
    directives = re.findall("^#SBATCH (.*)$", transcript.dry_run_text(under_slurm), re.MULTILINE)
    assert directives[directives.index("--requeue") + 1 :] == DIRECTIVES[name]


def test_home_of_the_nodes_is_expanded_under_slurm() -> None:
    text = transcript.dry_run_text(_plan("local", "slurm"))
    assert "exec /opt/conda/bin/python3 -E -s -S /home/train/.orch/bundles/" in text
    assert "~" not in text.replace("${nodes%%,*}", "")


@pytest.mark.parametrize(("name", "launcher"), list(product(SHIPPED, LAUNCHERS)))
def test_trainer_instead_of_a_program_changes_one_line(name: str, launcher: LauncherName) -> None:
    pairs = zip(
        transcript.dry_run_text(_plan(name, launcher, TRAINER)).splitlines(),
        transcript.dry_run_text(_plan(name, launcher)).splitlines(),
        strict=True,
    )
    args = f'["-u", "-m", "trainer", "device={DEVICES[name]}", "steps=20", "model.layers=4"]'
    line = f' "program": {{"python": true, "args": {args}, "pythonpath": "", "cwd": null}},'
    assert [trainer for trainer, program in pairs if trainer != program] == [line]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sixteen_nodes_have_their_own_names_addresses_and_ranks(launcher: LauncherName) -> None:
    text = transcript.dry_run_text(_plan("h800", launcher, nodes=16))
    for number in range(1, 16):
        name, address = f"h800-{number:02}", f"10.0.0.{number + 1}"
        if launcher == "slurm":
            assert f"'{name}')\n    ORCH_ADDRESS='{address}'\n" in text
        else:
            assert f"# --- node {name} (ssh train@{address});" in text
            assert f"--node '{name}' --node-rank {number} " in text
    assert launcher == "ssh" or ("#SBATCH --nodes=16\n" in text and "srun --nodes=16 --ntasks=16 " in text)


def test_rendered_scripts_pass_shellcheck(tmp_path: Path) -> None:
    """Each whole transcript, and every script in it separately."""
    for name, launcher in CASES:
        plan = _plan(name, launcher)
        scripts = {"transcript.sh": transcript.dry_run_text(plan)}
        for node, files in node_files(plan).items():
            scripts |= {
                f"{node}-{Path(file.path).name}": file.text for file in files if not file.path.endswith(".json")
            }
        for file_name, text in scripts.items():
            (tmp_path / f"{name}-{launcher}-{file_name}").write_text(text, "utf-8")
    command = [components.program("shellcheck"), "--norc", *sorted(map(str, tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "launcher"), CASES)
def test_unset_values_are_not_rendered(name: str, launcher: LauncherName) -> None:
    """No `--partition=`, no `export X=`, no None."""
    text = transcript.dry_run_text(_plan(name, launcher))
    assert not re.search(r"export \w+=$|--[\w-]+=(\s|$)|\bNone\b|=''", text, re.MULTILINE)
