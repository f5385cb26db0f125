"""`orch nodes`: equal nodes are one row, and nodes that do not answer are an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.errors import NodesError
from orchestrator.usecases.checks.nodes import summary, unread
from tests.grounds import nodes


def test_equal_nodes_are_one_row() -> None:
    assert summary(nodes.cluster("h800")) == [
        (
            "n[0-1]",
            "8 NVIDIA H800",
            "8 InfiniBand 400, 1 Ethernet 100",
            "192",
            "2016 GiB",
            "550.54.15",
            "2.21.5",
            "2.5.1",
            "3.11.9",
        )
    ]
    assert [row[:3] for row in summary(nodes.cluster("port-down"))] == [
        ("n0", "8 NVIDIA H800", "7 InfiniBand 400, 1 down, 1 Ethernet 100"),
        ("n1", "8 NVIDIA H800", "8 InfiniBand 400, 1 Ethernet 100"),
    ]


@pytest.mark.parametrize(
    ("kind", "cards", "rdma"),
    [
        ("t20", "8 T20", "-"),
        ("s60", "8 Enflame S60", "2 Ethernet 200"),
        ("mig", "8 NVIDIA H800 (MIG)", "8 InfiniBand 400, 1 Ethernet 100"),
        ("container", "8 NVIDIA H800", "9 without device file"),
        ("cpu", "-", "-"),
    ],
)
def test_cards_and_rdma_devices_are_counted(kind: str, cards: str, rdma: str) -> None:
    assert summary(nodes.cluster(kind, 1))[0][1:3] == (cards, rdma)


def test_what_the_table_lacks_is_named_once_for_all_nodes() -> None:
    facts = nodes.cluster("cpu")
    for of_node in facts.values():
        of_node["missing"] = {"cards.nvidia": "nvidia-smi: not found", "kernel_messages": "refused"}
    assert unread(facts) == ["n[0-1]: cards.nvidia: nvidia-smi: not found"]


@pytest.mark.processes
def test_nodes_of_an_inventory_are_printed_and_failures_raised(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        "transport: local\ndevices: 1\n"
        f"defaults: {{python: {sys.executable}, workdir: {tmp_path}}}\n"
        "nodes: [{name: n0}, {name: n1, python: /nonexistent}]\n"
    )
    done = CliRunner().invoke(app, ["nodes", "-i", str(inventory), "--json"], prog_name="orch", standalone_mode=False)
    assert done.return_value == NodesError.exit_code
    assert done.stderr.startswith("orch: error: n1: ")
    facts = json.loads(done.stdout)
    assert list(facts) == ["n0"]
    assert facts["n0"]["schema"] == 1
    assert facts["n0"]["disks"][-1]["writable"] is True
