"""Facts of small clusters, made here; tests/grounds has clusters from real samples."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.node.facts import FORMAT, Card, Gid, Hca, HcaPort, Interface, NodeFacts
from orchestrator.portable.environment.request import NodeRequest


def facts(node: str, **changes: object) -> NodeFacts:
    """A CPU-only node without interfaces; `changes` replace keys."""
    empty: NodeFacts = {
        "format": FORMAT,
        "node": node,
        "seconds": 0.1,
        "cpus": {"total": 64, "usable": 64, "quota": None, "governor": None, "numa": []},
        "memory": {"total": 1 << 40, "available": 1 << 39, "cgroup_limit": None, "swap_total": 0},
        "limits": {},
        "disks": [],
        "clock": {"time": 0.0, "synchronized": True},
        "names": {"hostname": node, "resolved": {}},
        "interfaces": [],
        "hcas": [],
        "cards": [],
        "topology": {},
        "software": {
            "python": "3.11.4",
            "executable": "/usr/bin/python3",
            "kernel": "5.15",
            "driver": None,
            "cuda": None,
            "torch": "2.7.0",
            "torch_cuda": None,
            "torch_gcu": None,
            "deepspeed": None,
            "nccl": {"path": "libnccl.so.2", "version": "2.26.2", "sha256": None},
            "packages": {},
            "packages_hash": None,
            "import_folders": [],
        },
        "code": None,
        "kernel_messages": [],
        "environment": {},
        "nccl_conf": {},
        "tools": [],
        "missing": {},
    }
    return {**empty, **changes}  # type: ignore[typeddict-item]  # the keys are those of a test


def interface(name: str, *addresses: str, kind: str = "ethernet", speed: float | None = None) -> Interface:
    entries = [address.split("/") for address in addresses]
    return {
        "name": name,
        "kind": kind,
        "up": True,
        "mtu": 1500,
        "speed": speed,
        "addresses": [{"address": address, "prefix": int(prefix)} for address, prefix in entries],
        "pci": None,
        "numa": None,
        "master": None,
        "hca": None,
    }


def card(index: int, *, kind: str = "cuda", health: str = "True") -> Card:
    return {
        "kind": kind,
        "index": index,
        "uuid": None,
        "name": None,
        "pci": None,
        "pci_path": f"/sys/devices/pci0000:{index}0/0000:{index}0:01.0/0000:{index}1:00.0/0000:{index}2:00.0",
        "numa": index // 4,
        "memory_total": None,
        "memory_used": None,
        "utilization": None,
        "mig": None,
        "processes": [],
        "health": {"Health": health},
    }


def hca(name: str, bus: int, *, layer: str = "InfiniBand", rate: float = 400.0, gids: tuple[Gid, ...] = ()) -> Hca:
    """An adapter on the PCIe switch of card `bus`, or on none if there is no such card."""
    port: HcaPort = {
        "port": 1,
        "state": "ACTIVE",
        "physical_state": "LinkUp",
        "link_layer": layer,
        "rate": rate,
        "lid": 1,
        "gids": list(gids),
        "counters": {},
    }
    return {
        "name": name,
        "node_type": "CA",
        "physical_function": None,
        "pci": None,
        "pci_path": f"/sys/devices/pci0000:{bus}0/0000:{bus}0:01.0/0000:{bus}1:01.0/0000:{bus}3:00.0",
        "numa": bus // 4,
        "board": None,
        "firmware": None,
        "usable": True,
        "interfaces": [],
        "ports": [port],
    }


def gid(index: int, address: str, interface_name: str, kind: str = "RoCE v2") -> Gid:
    parts = [int(part) for part in address.split(".")]
    text = f"0000:0000:0000:0000:0000:ffff:{parts[0]:02x}{parts[1]:02x}:{parts[2]:02x}{parts[3]:02x}"
    return {"index": index, "gid": text, "type": kind, "interface": interface_name}


def infiniband(number: int) -> NodeFacts:
    """Two cards with an adapter each, a storage adapter, eth0 and docker0."""
    return facts(
        f"n{number}",
        cards=[card(0), card(1)],
        hcas=[hca("mlx5_0", 0), hca("mlx5_1", 1), hca("mlx5_2", 7, layer="Ethernet", rate=100.0)],
        interfaces=[interface("eth0", f"10.0.0.{number + 1}/24"), interface("docker0", "172.17.0.1/16", kind="bridge")],
    )


def roce(number: int, *, nccl: str = "2.20.5", index: int = 3) -> NodeFacts:
    """Two cards with a RoCE adapter each, whose interfaces have addresses; eth0."""
    made = facts(f"n{number}", cards=[card(0), card(1)])
    made["interfaces"] = [interface("eth0", f"10.0.0.{number + 1}/24")]
    for rail in (0, 1):
        address, name = f"10.1.{rail}.{number + 1}", f"ens{rail}"
        slots = (gid(index - 1, address, name, "IB/RoCE v1"), gid(index, address, name))
        adapter = hca(f"mlx5_{rail}", rail, layer="Ethernet", gids=slots)
        adapter["interfaces"] = [name]
        made["hcas"].append(adapter)
        made["interfaces"].append(interface(name, f"{address}/24", speed=400.0))
    assert made["software"]["nccl"] is not None
    made["software"]["nccl"]["version"] = nccl
    return made


def cpu(number: int) -> NodeFacts:
    return facts(f"n{number}", interfaces=[interface("eth0", f"10.0.0.{number + 1}/24")])


def requests(
    *nodes: NodeFacts, network: str = "auto", ranks: int = 2, env: Mapping[str, str] = MappingProxyType({})
) -> dict[str, NodeRequest]:
    return {
        of_node["node"]: NodeRequest(f"10.0.0.{index + 1}", ranks, network=network, env=env)
        for index, of_node in enumerate(nodes)
    }
