"""The variables that nodes have already, judged with the versions and networks of their facts."""

from __future__ import annotations

from orchestrator.lint.live import common_context, lint_nodes, node_context
from orchestrator.node.facts import NodeFacts
from orchestrator.variables.conditions import Context
from tests.portable.environment import nodes


def _with_nccl(version: str, **changes: object) -> NodeFacts:
    library = {"path": "libnccl.so.2", "version": version, "sha256": None}
    facts = nodes.infiniband(0)
    return nodes.facts("n", hcas=facts["hcas"], software={**facts["software"], "nccl": library}, **changes)


def test_network_and_accelerator_follow_from_the_facts() -> None:
    contexts = [node_context(facts) for facts in (nodes.infiniband(0), nodes.roce(0), nodes.cpu(0))]
    assert [(context.network, context.accelerator) for context in contexts] == [
        ("InfiniBand", "cuda"),
        ("RoCE", "cuda"),
        ("Ethernet", None),
    ]
    assert node_context(nodes.facts("n", missing={"hcas": "no sysfs"})).network is None


def test_equal_findings_of_nodes_are_one() -> None:
    environment = {"NCCL_NTHREADS": "640", "NCCL_DEBUG": "WARN"}
    same = _with_nccl("2.26.2", environment=environment, nccl_conf={"/etc/nccl.conf": "# site\nNCCL_IB_HCA='mlx5'\n"})
    differing = _with_nccl("2.26.2", environment={**environment, "NCCL_IB_TIMEOUT": "30"})
    found = lint_nodes({"n0": same, "n1": same, "n2": differing})
    assert [(entry.file, entry.line, entry.finding.check, entry.nodes_text()) for entry in found] == [
        ("environment of a login", 0, "NCCL_NTHREADS", "n[0-2]"),
        ("/etc/nccl.conf", 2, "NCCL_IB_HCA", "n[0-1]"),
        ("environment of a login", 0, "NCCL_IB_TIMEOUT", "n2"),
    ]


def test_each_node_is_judged_with_its_own_version() -> None:
    versions = ("2.18.6", "2.27.5", "unreadable")
    found = lint_nodes({text: _with_nccl(text, environment={"NCCL_IB_GID_INDEX": "3"}) for text in versions})
    assert [(entry.finding.severity.value, entry.finding.nodes) for entry in found] == [
        ("FAIL", ("2.18.6",)),
        ("WARN", ("2.27.5",)),
        ("WARN", ("unreadable",)),
    ]


def test_facts_that_differ_between_nodes_are_unknown() -> None:
    context = common_context({"a": nodes.infiniband(0), "b": nodes.roce(0)})
    assert context.network is None
    assert context.accelerator == "cuda"
    assert "NCCL" not in context.versions
    assert common_context({}) == Context()


def test_prefix_of_adapters_is_mended_with_those_near_the_cards() -> None:
    facts = nodes.facts(
        "n", cards=nodes.infiniband(0)["cards"], hcas=nodes.infiniband(0)["hcas"], environment={"NCCL_IB_HCA": "mlx5"}
    )
    [found] = lint_nodes({"n": facts})
    assert found.replacement == "NCCL_IB_HCA==mlx5_0,mlx5_1"
    assert found.finding.remedy == "set NCCL_IB_HCA to =mlx5_0,mlx5_1"
