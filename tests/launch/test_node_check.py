"""The check of a launch: when it uses kept facts, and when it queries the nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.api import ssh_launch, submit
from orchestrator.cli.app import run
from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launch.node_check import CheckResult, check_result
from orchestrator.launch.preflight import checked_nodes
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.findings import Severity
from orchestrator.records.cache.facts import KeptFacts
from orchestrator.records.store import Store
from orchestrator.run import Program, Request
from tests.portable.checks.facts import cluster, cpu_node
from tests.usecases.stub_nodes import StubNodes

TRAINER = Program("trainer", ())


def _plan(program: Program, python: str = "python3", setup: tuple[str, ...] = ()) -> LaunchPlan:
    nodes = tuple(Node(name=f"n{index}", python=python) for index in range(3))
    inventory = Inventory(name="here", nodes=nodes, setup=setup)
    return make_plan(inventory, Request("ssh", program), run_id="here-20260102-030405-0abc", bundle="b")


def _result(nodes: StubNodes, kept: KeptFacts, plan: LaunchPlan | None = None) -> CheckResult:
    return check_result(nodes.checked, nodes.reach, plan or _plan(TRAINER), kept)


def _kept(folder: Path, nodes: Cluster) -> KeptFacts:
    kept = KeptFacts.of(Store(folder), "abc")
    kept.update(nodes.facts)
    return kept


def test_kept_facts_without_a_failure_are_used(tmp_path: Path) -> None:
    nodes = StubNodes(cluster(cpu_node, 3))
    assert _result(nodes, _kept(tmp_path, cluster(cpu_node, 2))).findings == []
    assert [name for name, node in nodes.by_name.items() if "probe" in node.deadlines] == ["n2"]


@pytest.mark.parametrize(("args", "config"), [(("out=/data/run",), None), ((), '{"out": "/data/run"}')])
def test_chosen_folder_of_checkpoints_is_looked_at_on_the_first_node(
    tmp_path: Path, args: tuple[str, ...], config: str | None
) -> None:
    inventory = Inventory(name="here", nodes=tuple(Node(name=f"n{index}") for index in range(2)))
    request = Request("ssh", Program("trainer", args), config=config)
    checked = checked_nodes(make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b"))
    assert [node.folders.get("out") for node in checked] == ["/data/run", None]
    stubs = StubNodes(cluster(cpu_node, 2))
    stubs.checked = [
        replace(node, folders=from_plan.folders) for node, from_plan in zip(stubs.checked, checked, strict=True)
    ]
    kept = _kept(tmp_path, cluster(cpu_node, 2))
    assert _result(stubs, kept).findings == []
    assert [name for name, node in stubs.by_name.items() if "probe" in node.deadlines] == ["n0"]


def test_kept_facts_with_a_failure_are_replaced(tmp_path: Path) -> None:
    old = cluster(cpu_node, 3)
    old.facts["n1"]["software"]["torch"] = "2.5.0"
    kept, nodes = _kept(tmp_path, old), StubNodes(cluster(cpu_node, 3))
    assert _result(nodes, kept).findings == []
    assert kept.read()["n1"]["software"]["torch"] == "2.6.0"


def test_code_on_the_nodes_is_compared_in_the_folder_of_the_program(tmp_path: Path) -> None:
    old = cluster(cpu_node, 3)
    old.facts["n1"]["code"] = {"path": "/home/u", "identity": "", "commit": None, "dirty": None, "digest": "other"}
    nodes = StubNodes(cluster(cpu_node, 3))
    result = _result(nodes, _kept(tmp_path, old), _plan(Program("python", ("/data/x/train.py",))))
    assert result.findings == []
    assert {facts["code"]["path"] for facts in result.cluster.facts.values() if facts["code"]} == {"/data/x"}


@pytest.mark.parametrize(
    ("plan", "severity"),
    [
        (_plan(TRAINER), Severity.FAIL),
        (_plan(Program("executable", ("./a.out",))), Severity.WARN),
        (_plan(TRAINER, setup=("conda activate x",)), Severity.WARN),
        (_plan(TRAINER, "/opt/x/bin/python", ("module load cuda",)), Severity.FAIL),
    ],
)
def test_packages_of_a_python_that_the_ranks_may_not_use_are_a_warning(
    tmp_path: Path, plan: LaunchPlan, severity: Severity
) -> None:
    nodes = cluster(cpu_node, 3)
    nodes.facts["n1"]["software"].update({"torch": "2.5.0", "python": "3.12.1"})
    found = _result(StubNodes(nodes), _kept(tmp_path, cluster(cpu_node, 0)), plan).findings
    assert {finding.check: finding.severity for finding in found} == dict.fromkeys(("versions", "python"), severity)


def test_skipped_check_refuses_nothing_and_its_facts_are_not_kept(tmp_path: Path) -> None:
    faulty = cluster(cpu_node, 3)
    faulty.facts["n1"]["software"]["torch"] = "2.5.0"
    nodes, kept = StubNodes(faulty), _kept(tmp_path, cluster(cpu_node, 0))
    result = check_result(nodes.checked, nodes.reach, _plan(TRAINER), kept, skipped=("versions",))
    assert result.findings == []
    assert kept.read() == {}


@pytest.mark.processes
def test_unknown_check_is_refused_before_a_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--skip nofiles: there is no such check"):
        ssh_launch(["true"], "local", skip=["nofiles"])
    with pytest.raises(UsageError, match="--skip nofiles: there is no such check"):
        submit(["true"], "local", skip=["nofiles"])
    assert run(["ssh-launch", "-i", "local", "--skip", "nofiles", "--dry-run", "--", "true"]) == UsageError.exit_code


@pytest.mark.processes
def test_path_given_by_env_is_looked_for_although_the_facts_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    inventory = f"name: here\ntransport: local\naccelerator: cpu\ndefaults: {{workdir: {tmp_path}/work}}\nnodes: [{{name: n0}}]\n"
    (tmp_path / "inventory.yaml").write_text(inventory, "utf-8")
    assert ssh_launch(["true"]).warnings == ssh_launch(["true"]).warnings  # the second one by kept facts
    [warning] = [text for text in ssh_launch(["true"], env={"MODEL": f"{tmp_path}/absent"}).warnings if "MODEL" in text]
    assert f"MODEL={tmp_path}/absent" in warning
    (tmp_path / "absent").touch()
    assert not [text for text in ssh_launch(["true"], env={"MODEL": f"{tmp_path}/absent"}).warnings if "MODEL" in text]
