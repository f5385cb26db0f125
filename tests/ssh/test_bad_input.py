"""Errors before and during a launch: message, next step, exit code, and no process left running."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.ports import silent_port
from tests.grounds.sshd import Farm
from tests.until import until


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes."""
    farm.inventory(tmp_path, nodes=2)
    return Orch(tmp_path)


def _edit(orch: Orch, old: str, new: str) -> None:
    path = orch.cwd / "inventory.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "n0,zz", "--", "true"], "zz: not in"),
        (["--nodes", "n0,n0", "--", "true"], "n0 is named twice"),
        (["-j", "3x1", "--", "true"], "-j 3x1 needs 3 nodes"),
        (["-j", "two", "--", "true"], "not a shape"),
        (["-i", "missing.yaml", "--", "true"], "missing.yaml"),
        (["--", "missing.py"], "program missing.py does not exist"),
        (["--", "./missing.sh"], "program ./missing.sh does not exist"),
        (["steps=20", "--", "true"], "steps=20 is for the shared trainer"),
        (["nonsense"], "'nonsense' is not a key=value setting"),
        (["stepz=20"], "stepz"),
        (["steps=many"], "steps"),
        (["--config", "missing.json"], "missing.json"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(orch: Orch, words: list[str], message: str) -> None:
    done = orch("ssh-launch", *words, code=2)
    assert message in done.stderr
    assert not orch.home.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "nope"], "no run"),
        (["logs"], "no run"),
        (["stop", "nope"], "no run"),
        (["inventory", "import", "abacus"], "'abacus' cannot be imported"),
        (["inventory", "validate", "-i", "gone.yaml"], "gone.yaml"),
    ],
)
def test_other_commands_name_what_is_missing(orch: Orch, words: list[str], message: str) -> None:
    assert message in orch(*words, code=2).stderr


@pytest.mark.processes
def test_launch_without_an_inventory_names_the_alternatives(tmp_path: Path) -> None:
    done = Orch(tmp_path)("ssh-launch", "--", "true", code=2)
    assert "no inventory" in done.stderr
    assert "--nodes n0,n1" in done.stderr


def test_every_failing_node_is_reported_and_nothing_runs(orch: Orch, farm: Farm) -> None:
    """One node refuses, one has no Python, two work: both failures are named, and no rank runs on the others."""
    farm.inventory(orch.cwd, nodes=4)
    _edit(orch, "address: 127.0.0.11", "address: 127.0.0.11\n  port: 1")
    _edit(orch, "address: 127.0.0.12", "address: 127.0.0.12\n  python: /opt/none/bin/python3")
    done = orch("ssh-launch", "--", "sleep", "1000", code=4)
    assert "2 of 4 nodes failed" in done.stderr
    assert "n1: " in done.stderr
    assert "n2: no Python: /opt/none/bin/python3 not found" in done.stderr
    until(lambda: not farm.processes(), awaited="the processes on the nodes to end")
    assert orch("status", code=1).stdout.split()[1] == "FAILED"


def test_node_that_never_answers_fails_at_the_connect_timeout(orch: Orch) -> None:
    with silent_port() as port:
        _edit(orch, "address: 127.0.0.11", f"address: 127.0.0.11\n  port: {port}")
        _edit(orch, "ssh:", "ssh:\n  connect_timeout_s: 1")
        begun = time.monotonic()
        done = orch("ssh-launch", "--", "true", code=4)
    assert "n1: " in done.stderr
    assert time.monotonic() - begun < 20


def test_changed_host_key_is_refused(orch: Orch, farm: Farm) -> None:
    with farm.restart_with_new_host_key():
        done = orch("ssh-launch", "--", "true", code=4)
    assert "host key" in done.stderr
    assert "2 of 2 nodes failed" in done.stderr


def test_unwritable_workdir_names_folder_and_next_step(orch: Orch, farm: Farm) -> None:
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    workdir = next(line.split()[-1] for line in text.splitlines() if "workdir" in line and "n1" in line)
    Path(workdir).parent.mkdir(parents=True, exist_ok=True)
    Path(workdir).write_text("a file where a folder should be")
    Path(workdir).parent.chmod(0o755)
    done = orch("ssh-launch", "--", "true", code=4)
    assert "n1: " in done.stderr
    assert workdir in done.stderr
    assert "workdir" in done.stderr
    until(lambda: not farm.processes(), awaited="the processes on the nodes to end")


def test_program_missing_on_the_node_is_named_and_no_process_stays(orch: Orch, farm: Farm) -> None:
    done = orch("ssh-launch", "--", "no-such-program-anywhere", code=4)
    assert "no-such-program-anywhere" in done.stderr
    until(lambda: not farm.processes(), awaited="the processes on the nodes to end")
