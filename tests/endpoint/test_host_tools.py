"""The node's own tools describe the cards of a container that lacks them; what cannot be counted stays unknown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.endpoint.host_tools import with_tools_of_node
from orchestrator.errors import NodeError
from orchestrator.inventory.model import Node
from orchestrator.launchers import cards as launchers_cards
from orchestrator.node.facts import NodeFacts, read_facts
from orchestrator.portable.checks.container_state import ContainerState
from orchestrator.transports.container import ContainerName, ContainerTransport
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.checks.nodes import summary, unread
from orchestrator.usecases.checks.sides import side_lines
from tests.paths import ROOT
from tests.portable.checks.facts import card, cpu_node

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.node.facts import Card

SAMPLES = ROOT / "tests" / "cases" / "vendor"


def _transport() -> ContainerTransport:
    """A container of this machine, which is its node."""
    return ContainerTransport(LocalTransport("n0"), ContainerName("docker", "train"))


def _tool(folder: Path, monkeypatch: pytest.MonkeyPatch, sample: str, name: str = "efsmi") -> None:
    """Install the tool on this machine: it prints the sample, and fails with -q."""
    tool = folder / name
    tool.write_text(f'#!/bin/sh\n[ "$1" = -q ] && exit 1\ncat {SAMPLES / sample}\n', "utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def _facts(cards: int) -> NodeFacts:
    """A container with as many device files of GCUs, and no efsmi."""
    facts = cpu_node("n0")
    empty: dict[str, object] = {
        "kind": "gcu",
        "name": None,
        "uuid": None,
        "memory_total": None,
        "memory_used": None,
        "health": {},
    }
    facts["cards"] = [cast("Card", {**card("n0", index), **empty}) for index in range(cards)]
    absent = "efsmi is not in this container"
    facts["tools"] = [{"name": "efsmi", "seconds": 0.0, "error": absent}]
    facts["missing"] = {"cards.enflame": absent} if cards else {"cards.count.gcu": f"{absent}; 8 cards on the PCI bus"}
    return facts


@pytest.mark.processes
def test_tool_of_the_node_describes_the_cards_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tool(tmp_path, monkeypatch, "efsmi-t20.txt")
    facts = read_facts(dict(with_tools_of_node(_facts(2), _transport())))
    assert summary({"n0": facts})[0][1] == "2 T20"
    assert all(each["memory_total"] and each["health"] for each in facts["cards"])
    assert (facts["missing"], facts["tools"][0]["name"]) == ({}, "efsmi on the node itself")
    node = Node(name="n0", container={"name": "train"})  # type: ignore[arg-type]
    [line] = side_lines([node, Node(name="n1")], {"n0": facts, "n1": cpu_node("n1")})
    assert line.startswith("n0: inside docker container train: software, disks,")
    assert line.endswith("driver and kernel, the values of efsmi")


@pytest.mark.processes
def test_other_number_of_cards_or_no_tool_leaves_them_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    facts = with_tools_of_node(_facts(3), _transport())
    assert "prints no cards on the node itself either" in facts["missing"]["cards.enflame"]
    _tool(tmp_path, monkeypatch, "efsmi-t20.txt")
    assert (
        "; efsmi on the node itself has 2 cards"
        in with_tools_of_node(_facts(3), _transport())["missing"]["cards.enflame"]
    )
    none = with_tools_of_node(_facts(0), _transport())
    assert summary({"n0": none})[0][1] == "unknown"
    assert "efsmi on the node itself has 2 cards" in unread({"n0": none})[0]
    assert summary({"n0": cpu_node("n0")})[0][1] == "-"


def test_container_without_the_cards_of_its_node_is_not_taken_for_a_node_without_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ContainerState("docker", "train", "running", image="i", host_cards={"gcu": 8})
    endpoint = SimpleNamespace(facts=SimpleNamespace(cards={"cuda": 0, "gcu": 0}), container_state=lambda: state)
    with pytest.raises(NodeError, match="n0: the container has no cards, and its node has 8 gcu") as raised:
        launchers_cards.require_visible(Node(name="n0"), cast("Endpoint", endpoint))
    assert "--privileged" in raised.value.hint
    assert raised.value.hint.endswith("accelerator: cpu in the inventory")
    monkeypatch.setattr(endpoint.facts, "cards", {"cuda": 0, "gcu": 8})
    launchers_cards.require_visible(Node(name="n0"), cast("Endpoint", endpoint))
