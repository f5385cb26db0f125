"""Wrong guesses of a first hour: what orch says to them, and the next step that it gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.app import run
from orchestrator.errors import UsageError
from orchestrator.inventory.model import from_names
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request, Shape
from tests.paths import ROOT

INVENTORIES = {
    "good.yaml": "accelerator: cpu\nnodes: [{name: n0}]\n",
    "hosts.yaml": "hosts: [{name: n0}]\n",
    "gpu.yaml": "accelerator: gpu\nnodes: [{name: n0}]\n",
    "text.yaml": "nodes: [n0, 'n[1-3]']\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / ".orch-home"))
    for name, text in INVENTORIES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hello.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inventory validate -i hosts.yaml", "did you mean nodes? "),
        ("inventory validate -i gpu.yaml", "did you mean cuda? "),
        ("inventory validate -i text.yaml", 'nodes[1]: must be a mapping, not text: write - {name: "n[1-3]"}'),
        ("inventory validate -i locl", "did you mean local?"),
        ("inventory validate -i h80.yaml", "did you mean h800?"),
        ("inventory new h80", "one of h800, h800-roce, local, t20"),
        ("diagnose nofile.log", "nofile.log: No such file or directory"),
        ("ssh-launch --dry-run -i good.yaml hello.py", "put a program of yours after --: orch ssh-launch -- hello.py"),
        ("submit --dry-run -i good.yaml hello.py", "put a program of yours after --: orch submit -- hello.py"),
        ("ssh-launch --dry-run -i good.yaml steps", "write steps=VALUE, as in steps=20; or put a program"),
        ("ssh-launch --dry-run -i good.yaml -j 1x2 -- true", "needs 2 devices per node; n0 has 1 device"),
        ("ssh-launch --dry-run -i good.yaml -j 2x1 -- true", "needs 2 nodes; "),
    ],
)
def test_a_wrong_guess_is_answered_with_what_to_write(
    folder: Path, capfd: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert not (folder / "inventory.yaml").exists()
    assert run(line.split()) == 2
    assert words in capfd.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", ["h800", "h800.yaml"])
def test_shipped_inventory_is_found_with_and_without_its_suffix(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["inventory", "new", name]) == 0
    assert capfd.readouterr().out == (ROOT / "inventories" / "h800.yaml").read_text("utf-8")
    assert run(["inventory", "validate", "-i", name]) == 0
    assert "h800.yaml is valid: 18 nodes, 144 devices" in capfd.readouterr().err
    (folder / "h800.yaml").write_text(INVENTORIES["good.yaml"])
    assert run(["inventory", "validate", "-i", "h800.yaml"]) == 0
    assert "h800.yaml is valid: 1 node, 1 device: n0" in capfd.readouterr().err


@pytest.mark.processes
def test_settings_of_the_trainer_are_listed_without_torch(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    assert run(["settings", "save_total", "--json"]) == 0
    assert [setting["key"] for setting in json.loads(capfd.readouterr().out)] == ["save_total_limit"]
    assert run(["settings", "qqq"]) == 2
    assert "no setting of the shared trainer has 'qqq' in its name" in capfd.readouterr().err


def test_shape_for_nodes_without_an_inventory_needs_one() -> None:
    request = Request("ssh", Program("executable", ("true",)), nodes="n0,n1", shape=Shape(2, 2))
    with pytest.raises(UsageError, match=r"(?m)n0 has 1 device$") as caught:
        make_plan(from_names(["n0", "n1"]), request, run_id="a", bundle="b")
    assert "write an inventory.yaml with these nodes and the line `devices: 2`" in caught.value.hint
