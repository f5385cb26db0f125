"""The shipped inventories: they load, have five lines to edit and a reason per variable, and set no harmful variable."""

from __future__ import annotations

import pytest

from orchestrator.inventory.model import Inventory, load
from tests.paths import ROOT

FOLDER = ROOT / "inventories"
NAMES = ("h800", "h800-roce", "t20", "t20-docker", "local")

# Wrong or without effect on the hardware of these inventories; comments in the files give the reason.
NEVER = {
    "CUDA_LAUNCH_BLOCKING",
    "DTU_VISIBLE_DEVICES",
    "ECCL_BACKEND",
    "ECCL_DEVICE_TYPE",
    "ECCL_IB_DISABLE",
    "ECCL_LOG_LEVEL",
    "ECCL_SOCKET_IFNAME",
    "ECCL_TIMEOUT",
    "GCU_VISIBLE_DEVICES",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_RETRY_CNT",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NTHREADS",
    "NCCL_P2P_LEVEL",
}
# Variables that Enflame's code or scripts read on a T20.
T20_KNOWN = {"ECCL_RUNTIME_3_0_ENABLE", "ECCL_ASYNC_DISABLE"}


def _inventory(name: str) -> Inventory:
    return load(FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_sample_names_the_number_of_its_few_lines_to_edit(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    marked = sum("# edit" in line for line in lines if not line.startswith("#"))
    assert marked == (4 if name == "h800" else 5)
    assert name == "local" or f"dit the {'four' if marked == 4 else 'five'} lines marked `# edit`" in "\n".join(lines)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_its_reason_above_it(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    for variable in _inventory(name).env:
        (index,) = [index for index, line in enumerate(lines) if line.startswith(f"  {variable}:")]
        assert lines[index - 1].startswith("  # "), variable


@pytest.mark.parametrize("name", NAMES)
def test_sample_sets_no_harmful_variable(name: str) -> None:
    inventory = _inventory(name)
    for node in inventory.nodes:
        assert not NEVER & set(inventory.environment(node))


@pytest.mark.parametrize("name", NAMES)
def test_omitted_variables_are_explained(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    if name != "local":
        assert "left out on purpose" in text.lower()


@pytest.mark.parametrize(("name", "network"), [("h800", "infiniband"), ("h800-roce", "roce")])
def test_rdma_is_required_with_no_guessed_adapters_or_an_exact_list_and_a_finite_timeout(
    name: str, network: str
) -> None:
    inventory = _inventory(name)
    assert (inventory.network, inventory.accelerator, inventory.devices) == (network, "cuda", 8)
    assert inventory.env["NCCL_NET"] == "IB"
    adapters = {"h800": None, "h800-roce": "=" + ",".join(f"mlx5_{index}" for index in range(8))}
    assert inventory.env.get("NCCL_IB_HCA") == adapters[name]
    assert inventory.env["NCCL_IB_TIMEOUT"] == "22"


def test_h800_has_sixteen_nodes_and_two_spares() -> None:
    nodes = _inventory("h800").nodes
    assert len(nodes) == 18
    assert [node.name for node in nodes if "spare" in node.tags] == ["h800-spare-0", "h800-spare-1"]
    assert (nodes[15].name, nodes[15].address) == ("h800-15", "10.0.0.16")


def test_roce_names_its_start_up_interface_exactly() -> None:
    assert _inventory("h800-roce").env["NCCL_SOCKET_IFNAME"].startswith("=")


def test_t20_sets_only_variables_that_enflame_reads_and_is_marked_unverified() -> None:
    inventory = _inventory("t20")
    assert set(inventory.env) <= T20_KNOWN
    assert {(node.accelerator, node.devices, node.python) for node in inventory.nodes} == {
        ("gcu", 8, "/usr/bin/python3.8")
    }
    assert len(inventory.nodes) == 8
    assert "NOT VERIFIED ON HARDWARE" in (FOLDER / "t20.yaml").read_text()


def test_local_is_two_nodes_of_two_cpu_ranks() -> None:
    inventory = _inventory("local")
    assert inventory.transport == "local"
    assert [(node.name, node.devices, node.accelerator) for node in inventory.nodes] == [
        ("n0", 2, "cpu"),
        ("n1", 2, "cpu"),
    ]


def test_readme_names_every_inventory() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{path.name}`" in readme for path in FOLDER.glob("*.yaml"))
