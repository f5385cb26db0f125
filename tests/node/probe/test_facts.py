"""The probe reads the files and tools of a machine: fixtures with the hardware that tests cannot have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.facts import NodeFacts
from tests.grounds import nodes


def hca_names(facts: NodeFacts, *, layer: str = "InfiniBand") -> list[str]:
    return [hca["name"] for hca in facts["hcas"] if hca["ports"][0]["link_layer"] == layer]


@pytest.mark.parametrize("kind", nodes.KINDS)
def test_nothing_is_missing_on_a_healthy_node(kind: str) -> None:
    facts = nodes.facts(kind)
    assert facts["missing"] == {}
    assert facts["format"] == 1
    assert facts["limits"]["nofile"] == {"soft": 1048576, "hard": 1048576}
    assert facts["limits"]["memlock"] == {"soft": None, "hard": None}
    assert facts["cpus"]["total"] == facts["cpus"]["usable"] == 192


def test_each_gpu_shares_a_switch_with_an_hca_and_none_with_the_storage_nic() -> None:
    facts = nodes.facts("h800")
    assert hca_names(facts) == [f"mlx5_{number}" for number in range(8)]
    assert hca_names(facts, layer="Ethernet") == ["mlx5_bond_0"]
    switches = {str(hca["pci_path"]).rsplit("/", 2)[0]: hca["name"] for hca in facts["hcas"]}
    near = [switches[str(card["pci_path"]).rsplit("/", 2)[0]] for card in facts["cards"]]
    assert near == [f"mlx5_{number}" for number in range(8)]
    assert [card["numa"] for card in facts["cards"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert facts["topology"]["GPU0"]["mlx5_0"] == "PIX"
    assert facts["topology"]["GPU0"]["mlx5_bond_0"] == "NODE"
    first = facts["hcas"][0]["ports"][0]
    assert (first["state"], first["physical_state"], first["rate"], first["lid"]) == ("ACTIVE", "LinkUp", 400.0, 0x10)


def test_interfaces_have_kind_speed_addresses_and_hca() -> None:
    found = {interface["name"]: interface for interface in nodes.facts("h800")["interfaces"]}
    kinds = {name: found[name]["kind"] for name in ("lo", "eno1", "ib0", "bond0", "ens10f0np0")}
    assert kinds == {
        "lo": "loopback",
        "eno1": "ethernet",
        "ib0": "infiniband",
        "bond0": "bond",
        "ens10f0np0": "ethernet",
    }
    assert (found["eno1"]["speed"], found["bond0"]["speed"], found["ib0"]["speed"]) == (10.0, 200.0, None)
    assert found["ib0"]["addresses"] == [{"address": "10.200.0.1", "prefix": 24}]
    assert (found["ib0"]["hca"], found["ens10f0np0"]["master"], found["eno1"]["hca"]) == ("mlx5_0", "bond0", None)
    assert all(found[name]["up"] for name in found)
    assert {i["name"]: (i["kind"], i["up"]) for i in nodes.facts("no-rdma")["interfaces"]}["docker0"] == (
        "bridge",
        False,
    )


def test_the_gid_of_the_ipv4_address_shifts_between_nodes() -> None:
    slots = []
    for facts in nodes.cluster("roce").values():
        table = facts["hcas"][0]["ports"][0]["gids"]
        (slot,) = [gid["index"] for gid in table if gid["type"] == "RoCE v2" and ":ffff:" in gid["gid"]]
        assert table[-1]["interface"] == "ens1np0"
        slots.append(slot)
    assert slots == [3, 5]


def test_a_port_that_is_down_is_read_as_such() -> None:
    ports = {hca["name"]: hca["ports"][0] for hca in nodes.facts("port-down")["hcas"]}
    assert (ports["mlx5_3"]["state"], ports["mlx5_3"]["physical_state"]) == ("DOWN", "Polling")
    assert ports["mlx5_2"]["state"] == "ACTIVE"


def test_in_a_container_without_dev_infiniband_no_hca_is_usable() -> None:
    facts = nodes.facts("container")
    assert len(facts["hcas"]) == 9
    assert not any(hca["usable"] for hca in facts["hcas"])
    assert (facts["cpus"]["quota"], facts["memory"]["cgroup_limit"]) == (32.0, 512 << 30)
    assert all(hca["usable"] for hca in nodes.facts("h800")["hcas"])


def test_type_and_physical_function_of_an_adapter_are_read(tmp_path: Path) -> None:
    machine = nodes.KINDS["h800"](0)
    physical = machine.links["/sys/class/infiniband/mlx5_0"].rpartition("/infiniband/")[0]
    virtual = f"{physical[:-1]}1"
    machine.hca("mlx5_20", virtual.removeprefix("/sys/devices/"), {"state": "4: ACTIVE"})
    machine.files[f"{virtual}/infiniband/mlx5_20/node_type"] = "4: RNIC"
    machine.links[f"{virtual}/physfn"] = physical
    machine.write(tmp_path)
    found = {hca["name"]: hca for hca in nodes.read(machine, tmp_path)["hcas"]}
    assert (found["mlx5_0"]["node_type"], found["mlx5_0"]["physical_function"]) == ("CA", None)
    assert (found["mlx5_20"]["node_type"], found["mlx5_20"]["physical_function"]) == ("RNIC", found["mlx5_0"]["pci"])


def test_gcus_are_read_from_the_table_of_a_t20_and_the_sections_of_an_s60() -> None:
    old, new = nodes.facts("t20"), nodes.facts("s60")
    assert [card["name"] for card in old["cards"]] == ["T20"] * 8
    assert [card["name"] for card in new["cards"]] == ["Enflame S60"] * 8
    assert old["cards"][7]["memory_total"] == 32 << 30
    assert (old["software"]["driver"], new["software"]["driver"]) == ("2.4.20230829", "1.5.20260710")
    assert all(card["pci_path"] for card in (*old["cards"], *new["cards"]))


@pytest.mark.parametrize(
    ("make", "tool", "fact"), [(nodes.t20, "efsmi", "enflame"), (nodes.h800, "nvidia-smi", "nvidia")]
)
def test_cards_of_a_container_without_the_vendors_tool_are_counted_by_their_device_files(
    tmp_path: Path, make: Callable[[], nodes.Machine], tool: str, fact: str
) -> None:
    """The tool is on the host only; unknown is not zero, which would refuse every launch."""
    machine = make()
    machine.tools.clear()
    machine.files["/.dockerenv"] = ""
    machine.write(tmp_path)
    facts = nodes.read(machine, tmp_path)
    assert [card["index"] for card in facts["cards"]] == list(range(8))
    assert all(card["pci_path"] for card in facts["cards"])
    prefix = "nvidia" if tool == "nvidia-smi" else "gcu"
    reason = f"{tool} is not in this container; the cards are counted by /dev/{prefix}*"
    assert facts["missing"] == {f"cards.{fact}": reason}


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (nodes.t20, {"cards.count.gcu": "efsmi: not found; 8 cards on the PCI bus, and there is no /dev/gcu*"}),
        (
            nodes.h800,
            {"cards.nvidia": "nvidia-smi: not found; 8 cards on the PCI bus, and there is no /dev/nvidia*"},
        ),
    ],
)
def test_number_of_gcus_without_tool_and_device_files_is_not_known(
    tmp_path: Path, make: Callable[[], nodes.Machine], missing: dict[str, str]
) -> None:
    """CUDA needs the files, so there the number is 0."""
    machine = make()
    machine.tools.clear()
    for path in [path for path in machine.files if path.startswith(("/dev/gcu", "/dev/nvidia"))]:
        del machine.files[path]
    machine.write(tmp_path)
    facts = nodes.read(machine, tmp_path)
    assert facts["cards"] == []
    assert facts["missing"] == missing


def test_gpus_have_driver_mig_mode_and_health() -> None:
    facts = nodes.facts("mig")
    assert (facts["software"]["driver"], facts["software"]["cuda"]) == ("550.54.15", "12.4")
    assert all(card["mig"] for card in facts["cards"])
    health = facts["cards"][0]["health"]
    assert health["ecc.errors.uncorrected.volatile.total"] == "0"
    assert health["remapped_rows.pending"] == "No"
    assert health["nvlink.CRC Errors"] == "0"


def test_ill_health_of_a_gcu_is_read(tmp_path: Path) -> None:
    machine = nodes.s60()
    machine.write(tmp_path)
    text = str(machine.tools["efsmi -q"])
    machine.tools["efsmi -q"] = text.replace("Health                  : True", "Health                  : False", 1)
    found = [card["health"]["Health"] for card in nodes.read(machine, tmp_path)["cards"]]
    assert found == ["False"] + ["True"] * 7


def test_processes_on_a_card_have_name_memory_and_owner(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.write(tmp_path)
    uuid = nodes.facts("h800")["cards"][2]["uuid"]
    machine.tools["nvidia-smi --query-compute-apps"] = (
        "pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n"
        f"{os.getpid()}, /usr/bin/python3, {uuid}, 1024\n"
        f"999999999, /opt/bin/vllm serve, {uuid}, [N/A]\n"
    )
    cards = nodes.read(machine, tmp_path)["cards"]
    ours, unseen = cards[2]["processes"]
    assert (ours["pid"], ours["ours"], ours["memory"]) == (os.getpid(), True, 1 << 30)
    assert unseen == {"pid": 999999999, "name": "vllm", "user": None, "memory": None, "ours": False}
    assert not any(card["processes"] for card in cards if card["index"] != 2)


def test_kernel_messages_on_devices_are_kept_with_their_time(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.files["/dev/kmsg"] = """6,339,5140900,-;NET: Registered PF_PACKET protocol family
3,340,5690716123,-;NVRM: Xid (PCI:0000:3d:00): 79, pid='<unknown>', GPU has fallen off the bus.
 SUBSYSTEM=pci
 DEVICE=+pci:0000:3d:00.0
4,341,5690716999,-;mlx5_core 0000:18:00.0 ib0: Link down
garbage
6,342,99999999999999999999,-;NVRM: a time that no clock has"""
    machine.write(tmp_path)
    found = nodes.read(machine, tmp_path)["kernel_messages"]
    assert [line.partition(" ")[2] for line in found] == [
        "NVRM: Xid (PCI:0000:3d:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "mlx5_core 0000:18:00.0 ib0: Link down",
    ]
    assert all(line[:2] == "20" and line[19] == "Z" for line in found)


def test_settings_of_nccl_are_read_from_its_files(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.files["/etc/nccl.conf"] = "NCCL_DEBUG=WARN"
    machine.files["/home/train/.nccl.conf"] = "NCCL_IB_HCA = mlx5"
    machine.write(tmp_path)
    expected = {"/etc/nccl.conf": "NCCL_DEBUG=WARN", "/home/train/.nccl.conf": "NCCL_IB_HCA = mlx5"}
    assert nodes.read(machine, tmp_path)["nccl_conf"] == expected
