"""The check of a launch: when it uses kept facts, and when it queries the nodes."""

from __future__ import annotations

from pathlib import Path

from orchestrator.actions.launch_check import CheckResult, begin_check
from orchestrator.checks.cluster import Cluster
from orchestrator.run import Program
from orchestrator.store import KeptFacts, Store
from tests.actions.stub_nodes import StubNodes
from tests.checks.facts import cluster, cpu_node

TRAINER = Program("trainer", ())


def _result(nodes: StubNodes, kept: KeptFacts, program: Program = TRAINER) -> CheckResult:
    return begin_check(nodes.checked, nodes.reach, program, kept).result(timeout=60)


def _kept(folder: Path, nodes: Cluster) -> KeptFacts:
    kept = Store(folder).kept_facts("abc")
    kept.update(nodes.facts)
    return kept


def test_kept_facts_without_a_failure_are_used(tmp_path: Path) -> None:
    nodes = StubNodes(cluster(cpu_node, 3))
    assert _result(nodes, _kept(tmp_path, cluster(cpu_node, 2))).findings == []
    assert [name for name, node in nodes.by_name.items() if "probe" in node.deadlines] == ["n2"]


def test_kept_facts_with_a_failure_are_replaced(tmp_path: Path) -> None:
    old = cluster(cpu_node, 3)
    old.facts["n1"]["software"]["torch"] = "2.5.0"
    kept, nodes = _kept(tmp_path, old), StubNodes(cluster(cpu_node, 3))
    assert _result(nodes, kept).findings == []
    assert kept.read()["n1"]["software"]["torch"] == "2.6.0"


def test_code_on_the_nodes_is_compared_in_the_folder_of_the_program(tmp_path: Path) -> None:
    old = cluster(cpu_node, 3)
    old.facts["n1"]["code"] = {"path": "/home/u", "commit": None, "dirty": None, "digest": "other"}
    nodes = StubNodes(cluster(cpu_node, 3))
    result = _result(nodes, _kept(tmp_path, old), Program("python", ("/data/x/train.py",)))
    assert result.findings == []
    assert {facts["code"]["path"] for facts in result.facts.values() if facts["code"]} == {"/data/x"}
