"""`keep:` of the inventory: relative output folders that later runs of the same name see, over SSH."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.inventory.model import load
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm

PROGRAM = """
import pathlib
state = pathlib.Path("outputs/run1/state")
begun = int(state.read_text()) if state.exists() else 0
print("begins at", begun, flush=True)
state.parent.mkdir(parents=True, exist_ok=True)
state.write_text(str(begun + 10))
"""


def test_next_run_begins_where_the_last_one_ended_on_each_node(farm: Farm, tmp_path: Path) -> None:
    inventory = farm.inventory(tmp_path, nodes=2, keep=["outputs"])
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "plot.py").touch()  # would be sent as code
    orch = Orch(tmp_path)
    first = orch("ssh-launch", "--no-check", "--", "train.py")
    assert "begins at 0" in first.stdout
    assert "1 file is not sent, in folders that the nodes keep (keep: outputs)" in first.stderr
    repeated = orch("rerun", "latest")
    assert re.findall(r"begins at \d+", repeated.stdout) == ["begins at 10"] * 2
    assert "begins at 0" in orch("ssh-launch", "--no-check", "--name", "other", "--", "train.py").stdout
    orch("cp", "farm:outputs", "copies")
    assert [(tmp_path / "copies" / node / "outputs/run1/state").read_text() for node in ("n0", "n1")] == ["20", "20"]
    removed = orch("gc", "--older-than", "0s", "--results")
    (kept,) = {line.split()[2] for line in removed.stdout.splitlines() if " kept " in line and "farm/" in line}
    states = [Path(node.workdir, "kept", kept, "outputs/run1/state") for node in load(inventory).nodes]
    assert [state.read_text("utf-8") for state in states] == ["20", "20"]


def test_second_run_that_would_write_to_the_same_folders_is_refused_and_another_name_is_not(
    farm: Farm, tmp_path: Path
) -> None:
    farm.inventory(tmp_path, nodes=1, keep=["outputs"])
    orch = Orch(tmp_path)
    run = orch("ssh-launch", "--no-check", "--detach", "--", "sleep", "1000").stdout.strip()
    refused = orch("ssh-launch", "--no-check", "--", "true", code=2).stderr
    assert f"{run} has not ended and writes to outputs, which this run would share: " in refused
    orch("ssh-launch", "--no-check", "--name", "other", "--", "true")
    orch("stop", run)
    orch("ssh-launch", "--no-check", "--", "true")


def test_folder_that_a_run_leaves_is_named_at_its_end_and_by_a_rerun(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, nodes=2)
    (tmp_path / "train.py").write_text(PROGRAM)
    orch = Orch(tmp_path)
    run = orch("ssh-launch", "--no-check", "--", "train.py")
    left = r"outputs/ \(4 B\) is in the folder of run farm-\S+ alone; next: keep: \[outputs\] in the inventory"
    assert re.search(left, run.stderr)
    assert re.search(left, orch("status").stdout)
    repeated = orch("rerun", "latest")
    assert re.search(
        r"outputs of farm-\S+ is in the folder of that run, and the new run begins without", repeated.stderr
    )


def test_file_of_the_code_cannot_be_a_kept_folder(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, nodes=1, keep=["train.py/x"])
    (tmp_path / "train.py").touch()
    done = Orch(tmp_path)("ssh-launch", "--no-check", "--", "train.py", code=2)
    assert "train.py is a file of the code, and no folder" in done.stderr
