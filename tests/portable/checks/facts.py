"""Facts of nodes for the tests of checks: plain CPU machines and nodes with cards, with single values changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.node.facts import FORMAT, Card, Disk, Hca, NodeFacts
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.environment.request import NodeRequest

Change = Callable[[Any], None]


def cpu_node(name: str, address: str = "10.0.0.1") -> NodeFacts:
    """A small CPU machine with the limits and folders of a plain installation."""
    return {
        "format": FORMAT,
        "node": name,
        "seconds": 0.1,
        "cpus": {"total": 4, "usable": 4, "quota": None, "governor": "powersave", "numa": [{"node": 0, "cpus": "0-3"}]},
        "memory": {"total": 8 * GIB, "available": 6 * GIB, "cgroup_limit": None, "swap_total": 2 * GIB},
        "limits": {
            "nofile": {"soft": 1024, "hard": 1048576},
            "nproc": {"soft": 31000, "hard": 31000},
            "memlock": {"soft": 1 << 20, "hard": 1 << 20},
        },
        "disks": [disk("workdir", f"/home/u-{name}"), disk("tmp", "/tmp"), disk("shm", "/dev/shm", total=GIB // 16)],
        "clock": {"time": 1.0, "synchronized": None},
        "names": {"hostname": name, "resolved": {name: [address]}},
        "interfaces": [],
        "hcas": [],
        "cards": [],
        "topology": {},
        "software": {
            "python": "3.11.2",
            "executable": "/usr/bin/python3",
            "kernel": "6.1.0",
            "driver": None,
            "cuda": None,
            "torch": "2.6.0",
            "torch_cuda": None,
            "torch_gcu": None,
            "deepspeed": None,
            "nccl": None,
            "packages": {"torch": "2.6.0", "numpy": "2.1.0"},
            "packages_hash": "same",
            "import_folders": [],
        },
        "code": None,
        "kernel_messages": [],
        "environment": {},
        "nccl_conf": {},
        "tools": [{"name": "nvidia-smi", "seconds": 0.0, "error": "not found"}],
        "missing": {"kernel_messages": "/dev/kmsg: Operation not permitted"},
    }


def gpu_node(name: str, address: str = "10.0.0.1", cards: int = 2) -> NodeFacts:
    """A node with cards, NVLink and one InfiniBand port for each card."""
    facts = cpu_node(name, address)
    names = [f"GPU{index}" for index in range(cards)]
    facts["disks"] = [disk("workdir", "/data"), disk("tmp", "/tmp"), disk("shm", "/dev/shm", total=64 * GIB)]
    facts["disks"][0]["type"] = "nfs4"
    facts["memory"]["swap_total"] = 0
    facts["cpus"]["governor"] = "performance"
    facts["limits"]["memlock"] = {"soft": None, "hard": None}
    facts["cards"] = [card(name, index) for index in range(cards)]
    facts["topology"] = {left: {right: "X" if left == right else "NV18" for right in names} for left in names}
    facts["hcas"] = [hca(f"mlx5_{index}") for index in range(cards)]
    facts["software"].update({"driver": "550.54", "cuda": "12.4", "torch_cuda": "12.4"})
    facts["software"]["nccl"] = {"path": "/lib/libnccl.so.2", "version": "2.21.5", "sha256": "a" * 64}
    return facts


def card(node: str, index: int) -> Card:
    """A healthy idle card."""
    return {
        "kind": "cuda",
        "index": index,
        "uuid": f"GPU-{node}-{index}",
        "name": "NVIDIA H800",
        "pci": f"0000:{index:02x}:00.0",
        "pci_path": None,
        "numa": 0,
        "memory_total": 80 * GIB,
        "memory_used": GIB // 2,
        "utilization": 0.0,
        "mig": False,
        "processes": [],
        "health": {
            "ecc.errors.uncorrected.volatile.total": "0",
            "remapped_rows.pending": "0",
            "pcie.link.width.current": "16",
            "pcie.link.gen.max": "5",
            "clocks_event_reasons.active": "0x0000000000000001",
        },
    }


def hca(name: str) -> Hca:
    """An active InfiniBand device."""
    return {
        "name": name,
        "node_type": "CA",
        "physical_function": None,
        "pci": None,
        "pci_path": None,
        "numa": 0,
        "board": "MT_0000000838",
        "firmware": "28.1",
        "usable": True,
        "interfaces": [],
        "ports": [
            {
                "port": 1,
                "state": "ACTIVE",
                "physical_state": "LinkUp",
                "link_layer": "InfiniBand",
                "rate": 400.0,
                "lid": 1,
                "gids": [],
                "counters": {"link_downed": 0},
            }
        ],
    }


def disk(use: str, path: str, *, total: int = 1 << 40, free: int = 1 << 39) -> Disk:
    """A local file system that can be written."""
    return {
        "use": use,
        "path": path,
        "mount": path,
        "type": "ext4",
        "identity": path,
        "total": total,
        "free": min(free, total),
        "inodes_free": 1 << 20,
        "writable": True,
        "refused": None,
        "checkpoint": None,
    }


def cluster(make: Callable[[str, str], NodeFacts], count: int, accelerator: str = "auto", devices: int = 1) -> Cluster:
    """A cluster of equal nodes n0, n1, … that resolve each other's names."""
    addresses = {f"n{index}": f"10.0.0.{1 + index}" for index in range(count)}
    facts = {name: make(name, address) for name, address in addresses.items()}
    for node in facts.values():
        node["names"]["resolved"] = {name: [address] for name, address in addresses.items()}
    expected = {name: NodeRequest(address, devices, accelerator) for name, address in addresses.items()}
    return Cluster(expected, facts, clocks=dict.fromkeys(addresses, (-0.01, 0.02)))
