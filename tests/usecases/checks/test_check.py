"""The result of a check: its table, the facts that are kept, and names of checks."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.app import run
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LoginRefused, UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import NodePlan
from orchestrator.portable.checks.quick import check
from orchestrator.portable.findings import Severity
from orchestrator.records.cache.facts import KEPT_S, KeptFacts, facts_to_keep
from orchestrator.records.store import Store
from orchestrator.run import Program, Request
from orchestrator.usecases.checks.check import Checked, check_nodes, connected
from tests.portable.checks.facts import cluster, cpu_node, gpu_node
from tests.usecases.stub_nodes import StubNodes


def test_nodes_with_equal_cells_are_one_row() -> None:
    nodes = cluster(gpu_node, 5, "cuda", 2)
    nodes.facts["n3"]["hcas"][0]["ports"][0]["state"] = "DOWN"
    nodes = replace(nodes, facts={name: facts for name, facts in nodes.facts.items() if name != "n4"})
    checked = Checked(nodes, check(nodes), 1.0)
    usual, down = ("2 x NVIDIA H800", "2 x 400 Gb/s InfiniBand"), ("2 x NVIDIA H800", "1 x 400 Gb/s InfiniBand")
    assert list(checked.rows()) == [
        ("n[0-2]", *usual, "4", "8 GiB", "2.6.0", "ok"),
        ("n3", *down, "4", "8 GiB", "2.6.0", "FAIL"),
        ("n4", "no answer", "", "", "", "", "FAIL"),
    ]
    assert checked.has_failed
    assert checked.to_json()["nodes"] == {"n0": "ok", "n1": "ok", "n2": "ok", "n3": "FAIL", "n4": "FAIL"}
    assert checked.findings[0].report().startswith("FAIL  answer: n4: no answer\n      next: ")


def test_facts_are_kept_of_nodes_without_cards_and_findings_for_a_short_time(tmp_path: Path) -> None:
    nodes = cluster(cpu_node, 3)
    nodes.facts["n1"]["limits"]["nofile"] = {"soft": 256, "hard": 256}
    nodes.facts["n0"]["code"] = {"path": "/data", "identity": "", "commit": None, "dirty": None, "digest": None}
    kept = facts_to_keep(nodes, check(nodes))
    assert kept == {"n0": {**nodes.facts["n0"], "code": None}, "n1": None, "n2": nodes.facts["n2"]}
    assert facts_to_keep(cluster(gpu_node, 2), []) == {"n0": None, "n1": None}

    facts = KeptFacts.of(Store(tmp_path), "abc")
    assert facts.read() == {}
    facts.update(kept)
    assert facts.read() == {"n0": kept["n0"], "n2": kept["n2"]}
    entries = json.loads(facts.path.read_text())
    entries["n0"]["time"] -= KEPT_S
    facts.path.write_text(json.dumps(entries))
    assert list(facts.read()) == ["n2"]
    del entries["n2"]["facts"]["cpus"]  # as if another version had written it
    facts.path.write_text(json.dumps(entries))
    assert facts.read() == {}
    facts.path.write_text("{}[")
    assert facts.read() == {}


def test_facts_that_are_used_become_no_younger(tmp_path: Path) -> None:
    nodes, facts = cluster(cpu_node, 3).facts, KeptFacts.of(Store(tmp_path), "abc")
    facts.update(nodes)
    entries = json.loads(facts.path.read_text())
    for node in ("n1", "n2"):
        entries[node]["time"] -= KEPT_S - 60
    facts.path.write_text(json.dumps(entries))
    facts.update({"n0": None, "n1": nodes["n1"]})
    updated = json.loads(facts.path.read_text())
    assert updated.keys() == {"n1", "n2"}
    assert updated["n1"]["time"] > entries["n1"]["time"] + 50
    assert updated["n2"]["time"] == entries["n2"]["time"]


def test_unknown_check_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--skip nofiles: there is no such check"):
        check_nodes("local", None, ["nofiles"])
    assert run(["check", "-i", "local", "--skip", "nofiles"]) == 2
    assert "next: the checks are answer, incomplete, container, cards, " in capsys.readouterr().err


def test_nodes_are_logged_in_to_once_before_any_deadline_begins() -> None:
    inventory = Inventory(name="here", nodes=tuple(Node(name=name) for name in ("n0", "n1")))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    stubs = StubNodes(cluster(cpu_node, 1))
    logins: Counter[str] = Counter()

    def reach(node: NodePlan) -> Endpoint:
        logins[node.name] += 1
        if node.name == "n1":
            raise LoginRefused("n1", "wrong password")
        return stubs.reach(node.name)

    by_name = connected(plan, reach)
    assert logins == {"n0": 1, "n1": 1}
    assert by_name("n0") is stubs.reach("n0")
    for _ in range(2):
        with pytest.raises(LoginRefused, match="wrong password"):
            by_name("n1")
    assert logins["n1"] == 1


@pytest.mark.processes
def test_nodes_that_slurm_may_choose_outside_the_inventory_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    line = "PartitionName=gpu Default=YES MaxTime=UNLIMITED Nodes=n[0-3] State=UP TotalNodes=4"
    scontrol.write_text(f"#!/bin/sh\necho '{line}'\n", "utf-8")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text = f"transport: local\naccelerator: cpu\ndefaults: {{workdir: {tmp_path}/w}}\nslurm: {{time: '30'}}\nnodes: [{{name: n0}}, {{name: n1}}]\n"
    (tmp_path / "inventory.yaml").write_text(text, "utf-8")
    [finding] = [found for found in check_nodes(None, None).findings if found.check == "outside"]
    assert (finding.severity, finding.nodes) == (Severity.WARN, ())
    assert finding.text.startswith("Slurm may choose n[2-3], for which the job has no settings")
    assert not [found for found in check_nodes(None, None, ["outside"]).findings if found.check == "outside"]
    (tmp_path / "inventory.yaml").write_text(text.replace("slurm: {time: '30'}\n", ""), "utf-8")
    assert not [found for found in check_nodes(None, None).findings if found.check == "outside"]


@pytest.mark.processes
def test_full_level_imports_the_stacks_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for name in ("deepspeed", "deepspeed-0.9.9.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "deepspeed" / "__init__.py").write_text("raise ImportError('libcudart.so.11.0: no such file')\n", "utf-8")
    (site / "deepspeed-0.9.9.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.9.9\n", "utf-8")
    (site / "deepspeed-0.9.9.dist-info" / "RECORD").write_text("", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text = f"transport: local\naccelerator: cpu\ndefaults: {{workdir: {tmp_path}/w}}\nnodes: [{{name: n0}}]\n"
    (tmp_path / "inventory.yaml").write_text(text, "utf-8")
    [finding] = [found for found in check_nodes(None, None, imports_stacks=True).findings if found.check == "imports"]
    assert (finding.severity, finding.nodes) == (Severity.FAIL, ("n0",))
    assert "import deepspeed fails: ImportError: libcudart.so.11.0" in finding.text
    assert not [found for found in check_nodes(None, None).findings if found.check == "imports"]
