"""The check of containers, and the lines that create them again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import cast

import pytest

from orchestrator.node.facts import NodeFacts
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.checks.container import container
from orchestrator.portable.checks.container_state import ContainerState
from orchestrator.portable.checks.quick import check
from orchestrator.portable.findings import Finding, Severity
from tests.portable.checks.facts import cluster, cpu_node, disk, gpu_node

OPTIONS = ("--network=host", "--volume=/data:/data")


def _state(name: str, **changes: object) -> ContainerState:
    state = ContainerState(
        "docker", name, "running", image="train:1", image_id="a" * 64, mounts=("/data", "/home"), options=OPTIONS
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def _cluster(nodes: Cluster, **changes: object) -> Cluster:
    """The cluster with a container on each node, of which the last has these values."""
    names = list(nodes.expected)
    states = {name: _state(f"c-{name}", **(changes if name == names[-1] else {})) for name in names}
    return replace(nodes, containers=states)


def _only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_container_as_it_should_be_has_no_finding() -> None:
    assert check(_cluster(cluster(cpu_node, 2))) == []


def test_network_of_its_own_fails_only_with_several_nodes() -> None:
    finding = _only(check(_cluster(cluster(cpu_node, 2), network="bridge")))
    assert (finding.severity, finding.check, finding.nodes) == (Severity.FAIL, "container", ("n1",))
    assert "network bridge" in finding.text
    assert check(_cluster(cluster(cpu_node, 1), network="bridge")) == []


@pytest.mark.parametrize(
    ("mounts", "is_found"),
    [(("/home",), False), (("/home/u-n1",), False), (("/",), False), (("/hom",), True), ((), True), (None, False)],
)
def test_workdir_outside_all_mounts_is_warned_of(mounts: tuple[str, ...] | None, *, is_found: bool) -> None:
    findings = list(container(_cluster(cluster(cpu_node, 2), mounts=mounts)))
    assert [finding.severity for finding in findings] == ([Severity.WARN] if is_found else [])


def test_image_that_differs_from_that_of_most_nodes_is_warned_of() -> None:
    finding = _only(check(_cluster(cluster(cpu_node, 3), image="train:2", image_id="b" * 64)))
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n2",))
    assert "train:2 bbbbbbbbbbbb" in finding.text
    both = _only(check(_cluster(cluster(cpu_node, 2), image="train:2", image_id="b" * 64)))
    assert both.nodes == ("n0", "n1"), "two nodes have no majority"


def test_cards_that_the_node_has_and_its_container_has_not_are_named_with_the_option() -> None:
    nodes = cluster(gpu_node, 1, "cuda", 2)
    without = cast("NodeFacts", {**nodes.facts["n0"], "cards": [], "hcas": []})
    hidden = _cluster(replace(nodes, facts={"n0": without}), host_cards={"cuda": 8})
    finding = next(finding for finding in check(hidden) if finding.check == "cards")
    assert finding.text == "the container has no cards, and its node has 8"
    assert "--gpus=all" in finding.remedy


def test_limits_and_shared_memory_are_corrected_by_options_of_the_container() -> None:
    nodes = cluster(gpu_node, 1, "cuda", 2)
    facts = nodes.facts["n0"]
    limits = {**facts["limits"], "nofile": {"soft": 1024, "hard": 1024}, "memlock": {"soft": 1 << 16, "hard": 1 << 16}}
    disks = [entry if entry["use"] != "shm" else disk("shm", "/dev/shm", total=GIB // 16) for entry in facts["disks"]]
    changed = replace(nodes, facts={"n0": {**facts, "limits": limits, "disks": disks}})  # type: ignore[typeddict-item]
    remedies = {finding.check: finding.remedy for finding in check(_cluster(changed))}
    assert "--ulimit=nofile=1048576" in remedies["nofile"]
    assert "--ulimit=memlock=-1" in remedies["memlock"]
    assert "--ipc=host" in remedies["shm"]
    apptainer = {finding.check: finding.remedy for finding in check(_cluster(changed, mounts=None))}
    assert not any("docker" in remedy.split()[0] for remedy in apptainer.values())


def test_container_that_orch_creates_gets_its_options_in_the_inventory_and_podman_its_own_option_for_cards() -> None:
    state = _state("orch-x", is_of_image=True)
    assert state.recreated_with("--ulimit=nofile=1048576") == (
        "write it in container: of the inventory: options: [--ulimit=nofile=1048576]"
    )
    options = [_state("c", client=client).card_option("cuda") for client in ("docker", "sudo -n podman", "apptainer")]
    assert options == ["--gpus=all", "--device=nvidia.com/gpu=all", ""]


def test_line_replaces_an_option_of_one_value_and_keeps_the_others() -> None:
    state = _state("c0", options=("--network=none", "--volume=/a b:/a b", "--ulimit=nofile=1:1"))
    steps = [shlex.split(step) for step in state.recreated_with("--network=host", "--ulimit=memlock=-1").split(" && ")]
    assert steps == [
        ["docker", "commit", "c0", "c0-image"],
        ["docker", "stop", "c0"],
        ["docker", "rename", "c0", "c0-before"],
        ["docker", "run", "-dit", "--name", "c0", "--volume=/a b:/a b", "--ulimit=nofile=1:1", "--network=host",
         "--ulimit=memlock=-1", "c0-image"],
    ]  # fmt: skip
