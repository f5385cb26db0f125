"""
Nodes with hardware that tests cannot have: their files below /sys, /proc and /dev, and the output of their vendors' tools.

`facts("h800")` is what the probe reads of one. The formats are those of real machines (tests/cases/vendor/README.md and
the kernel's sysfs); names, numbers and addresses are made up.
"""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator.node.facts import NodeFacts
from orchestrator.node.probe.collect import collect
from orchestrator.node.probe.source import Source
from orchestrator.node.probe.steps import run_step
from orchestrator.node.vendor.tool import NOT_FOUND
from tests.paths import CASES

if TYPE_CHECKING:
    from orchestrator.node.probe.collect import ProbeRequest
    from orchestrator.node.probe.steps import Group, StepResult

TIME_S = 1_795_000_000.0
GIB = 1 << 30
H800_MIB = 81559
# Root ports of the PCI switches above which a card and an HCA sit; the first half is on NUMA node 0.
BUSES = ("15", "26", "37", "48", "85", "96", "a7", "b8")
STORAGE = "mlx5_bond_0"
NONE: Mapping[str, str] = {}
GIDS = 8  # slots of an InfiniBand port's table; a RoCE port has more


@dataclass
class Machine:
    """A node as files, links and the output of tools; `given` has the results of steps that query the kernel."""

    name: str
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str | int] = field(default_factory=dict)
    """Output by the command's first words, such as "nvidia-smi topo"; a number is an exit code."""
    given: dict[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """Make the files and links below a folder."""
        folders = {os.path.dirname(path) for path in (*self.files, *self.links)} | set(self.links.values())
        for folder in folders:
            os.makedirs(f"{root}{folder}", exist_ok=True)  # thousands: pathlib takes twice as long
        for path, text in self.files.items():
            with open(f"{root}{path}", "w", encoding="utf-8") as file:
                file.write(text + "\n")
        for path, target in self.links.items():
            os.symlink(os.path.relpath(target, os.path.dirname(path)), f"{root}{path}")

    def write_tools(self, folder: Path) -> None:
        """Make programs that print the tools' output."""
        folder.mkdir(parents=True, exist_ok=True)
        for tool in {command.split()[0] for command in self.tools}:
            cases = []
            for number, (command, output) in enumerate(sorted(self.tools.items(), reverse=True)):
                name, _, words = command.partition(" ")
                if name == tool and isinstance(output, str):
                    (folder / f".{tool}-{number}").write_text(output, "utf-8")
                    cases.append(f"'{words}'*) exec cat \"${{0%/*}}/.{tool}-{number}\" ;;")
                elif name == tool:
                    cases.append(f"'{words}'*) exit {output} ;;")
            script = "\n".join(["#!/bin/sh", 'case "$*" in', *cases, "*) exit 6 ;;", "esac", ""])
            (folder / tool).write_text(script)
            (folder / tool).chmod(0o755)

    def interface(
        self,
        name: str,
        device: str | None = None,
        *,
        mbps: int = -1,
        type_: int = 1,
        up: bool = True,
        files: Mapping[str, str] = NONE,
    ) -> None:
        """Add a network interface; `device` is the path of the PCI device below /sys/devices."""
        folder = f"/sys/devices/{device}/net/{name}" if device else f"/sys/devices/virtual/net/{name}"
        number = sum(path.endswith("/ifindex") for path in self.files) + 1
        values = {
            "ifindex": str(number),
            "type": str(type_),
            "operstate": "up" if up else "down",
            "flags": "0x1003" if up else "0x1002",
            "mtu": {32: "4092", 772: "65536"}.get(type_, "1500"),
            "speed": str(mbps),
            "uevent": f"INTERFACE={name}\nIFINDEX={number}",
            **files,
        }
        self.files.update({f"{folder}/{key}": value for key, value in values.items()})
        self.links[f"/sys/class/net/{name}"] = folder
        if device:
            self.links[f"{folder}/device"] = f"/sys/devices/{device}"

    def address(self, interface: str, *addresses: str) -> None:
        """Give an interface addresses such as 10.0.0.1/16."""
        entries = [address.split("/") for address in addresses]
        table = self.given.setdefault("addresses", {})
        table.setdefault(interface, []).extend({"address": a, "prefix": int(prefix)} for a, prefix in entries)

    def pci(self, path: str, *, vendor: str, class_: str, numa: int) -> str:
        """Add a PCI device; return its path below /sys/devices."""
        values = {"vendor": vendor, "class": class_, "numa_node": str(numa)}
        self.files.update({f"/sys/devices/{path}/{key}": value for key, value in values.items()})
        self.links[f"/sys/bus/pci/devices/{Path(path).name}"] = f"/sys/devices/{path}"
        return path

    def hca(
        self, name: str, device: str, ports: Mapping[str, str], gids: Sequence[Gid] = (), *, slots: int = GIDS
    ) -> None:
        """Add an RDMA device with one port."""
        folder, number = f"/sys/devices/{device}/infiniband/{name}", sum(p.endswith("/board_id") for p in self.files)
        port = f"{folder}/ports/1"
        self.files.update({f"{folder}/board_id": "MT_0000000838", f"{folder}/fw_ver": "28.39.1002"})
        self.files[f"{folder}/node_type"] = "1: CA"
        self.files.update({f"{port}/{key}": value for key, value in ports.items()})
        self.files.update({f"{port}/gids/{index}": ":".join(["0000"] * 8) for index in range(slots)})
        for gid in gids:
            self.files[f"{port}/gids/{gid.index}"] = gid.gid
            self.files[f"{port}/gid_attrs/types/{gid.index}"] = gid.type
            if gid.interface:
                self.files[f"{port}/gid_attrs/ndevs/{gid.index}"] = gid.interface
        for group, names in (("counters", ("link_downed", "symbol_error")), ("hw_counters", ("out_of_sequence",))):
            self.files.update({f"{port}/{group}/{key}": "0" for key in names})
        self.links[f"{folder}/device"] = f"/sys/devices/{device}"
        self.links[f"/sys/class/infiniband/{name}"] = folder
        self.files[f"/sys/devices/{device}/infiniband_verbs/uverbs{number}/ibdev"] = name
        verbs = f"/sys/devices/{device}/infiniband_verbs/uverbs{number}"
        self.links[f"/sys/class/infiniband_verbs/uverbs{number}"] = verbs
        self.files[f"/dev/infiniband/uverbs{number}"] = ""


@dataclass(frozen=True)
class Gid:
    """A slot of a GID table."""

    index: int
    gid: str
    type: str
    interface: str = ""


class GivenSource(Source):
    """Reads a machine's files, and takes the output of tools from `Machine.tools`."""

    def __init__(self, machine: Machine, root: Path) -> None:
        super().__init__(str(root), {"HOME": "/home/train", "PATH": "/usr/bin"})
        self._machine = machine

    def find(self, program: str) -> str | None:
        """A tool is installed if it has an output."""
        return program if any(command.split()[0] == program for command in self._machine.tools) else None

    def run(self, argv: Sequence[str], timeout_s: float) -> tuple[str | None, str | None]:  # as in Source
        """The output of the longest command that these words begin with."""
        line = " ".join(argv)
        found = max((command for command in self._machine.tools if line.startswith(command)), key=len, default=None)
        output = None if found is None else self._machine.tools[found]
        if isinstance(output, int):
            return None, f"exit code {output}: no message"
        return output, NOT_FOUND if output is None else None


def run_here(given: Mapping[str, Any]) -> Callable[[Sequence[Group], Source], dict[str, StepResult]]:
    """A runner of steps without processes; steps in `given` have that result."""

    def run(groups: Sequence[Group], source: Source) -> dict[str, StepResult]:
        results: dict[str, StepResult] = {}
        for name, step in ((name, step) for steps, _ in groups for name, step in steps.items()):
            given_step = (lambda _, value=given[name]: copy.deepcopy(value)) if name in given else step
            results[name] = run_step(name, cast("Callable[[Source], object]", given_step), source)
        return results

    return run


def read(machine: Machine, root: Path, *, names: Sequence[str] = ()) -> NodeFacts:
    """The facts that the probe's code reads of a machine whose files are below `root`."""
    request: ProbeRequest = {
        "node": machine.name,
        "names": list(names),
        "folders": {"workdir": "/data/orch", "out": "/data/orch"},
        "code": None,
    }
    found = collect(request, GivenSource(machine, root), run_here(machine.given))
    found["clock"]["time"], found["seconds"] = TIME_S, 0.1
    return found


def facts(kind: str, number: int = 0) -> NodeFacts:
    """The facts of node n<number> of a cluster of this kind (KINDS); a copy, to be changed by the test."""
    return copy.deepcopy(_facts(kind, number))


def cluster(kind: str, count: int = 2) -> dict[str, NodeFacts]:
    """The facts of the first nodes of a cluster of this kind, by node."""
    return {f"n{number}": facts(kind, number) for number in range(count)}


@functools.cache
def _facts(kind: str, number: int) -> NodeFacts:
    machine = KINDS[kind](number)
    with tempfile.TemporaryDirectory(prefix="orch-node-") as folder:
        machine.write(Path(folder))
        return read(machine, Path(folder), names=["n0", "n1"])


def server(number: int, *, cards: str = "NVIDIA H800") -> Machine:
    """A node with two NUMA nodes of 48 cores, a management interface, and the software of a cluster; no cards yet."""
    machine = Machine(f"n{number}")
    machine.files.update(
        {
            "/sys/devices/system/cpu/online": "0-191",
            "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance",
            "/sys/devices/system/node/node0/cpulist": "0-47,96-143",
            "/sys/devices/system/node/node1/cpulist": "48-95,144-191",
            "/proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-191",
            "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope",
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000",
            "/sys/fs/cgroup/user.slice/memory.max": "max",
            "/proc/meminfo": "MemTotal:       2113407896 kB\nMemFree:   1987654321 kB\nMemAvailable:   2050000000 kB\nSwapTotal:             0 kB",
            "/proc/self/limits": LIMITS,
            "/proc/sys/kernel/hostname": f"n{number}",
            "/proc/sys/kernel/osrelease": "5.15.0-105-generic",
            "/dev/kmsg": "",
        }
    )
    machine.interface("lo", type_=772, files={"operstate": "unknown", "flags": "0x9"})
    machine.address("lo", "127.0.0.1/8")
    management = machine.pci("pci0000:00/0000:00:1c.0/0000:02:00.0", vendor="0x8086", class_="0x020000", numa=0)
    machine.interface("eno1", management, mbps=10000)
    machine.address("eno1", f"10.0.0.{number + 1}/16")
    has_gpus = cards.startswith("NVIDIA")
    machine.given.update(
        {
            "software.cuda": "12.4" if has_gpus else None,
            "clock": True,
            "names": {f"n{peer}": [f"10.0.0.{peer + 1}"] for peer in range(2)},
            "software": SOFTWARE["cuda" if has_gpus else "cpu"],
            "software.nccl": NCCL if has_gpus else None,
            **{f"disks.{use}": disk(use, *system) for use, system in DISKS.items()},
        }
    )
    return machine


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             8245632              8245632              processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes"""
NCCL = {
    "path": "/opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
    "version": "2.21.5",
    "sha256": "5e" * 32,
}


def software(packages: Mapping[str, str], torch_cuda: str | None, python: str = "3.11.9") -> dict[str, object]:
    """The result of the step of this name."""
    return {
        "python": python,
        "executable": "/opt/conda/bin/python3",
        "packages": dict(packages),
        "packages_hash": "ab" * 32,
        "import_folders": [],
        "torch_cuda": torch_cuda,
    }


SOFTWARE = {
    "cuda": software({"deepspeed": "0.15.4", "nvidia-nccl-cu12": "2.21.5", "torch": "2.5.1"}, "12.4"),
    "cpu": software({"torch": "2.5.1+cpu"}, None),
    "t20": software(
        {"deepspeed": "0.9.2+gcu.49", "torch": "1.10.0+cpu", "torch-gcu": "1.10.0+2.5.136"}, None, "3.8.10"
    ),
    "s60": software({"torch": "2.10.0+cpu", "torch-gcu": "2.10.0+3.7"}, None, "3.10.12"),
}
DISKS = {
    "home": ("/home/train", "nfs4", "/home", 20 << 40, 8 << 40),
    "tmp": ("/tmp", "ext4", "/", 1 << 40, 700 << 30),
    "shm": ("/dev/shm", "tmpfs", "/dev/shm", 1 << 40, 1 << 40),
    "workdir": ("/data/orch", "lustre", "/data", 900 << 40, 400 << 40),
    "out": ("/data/orch", "lustre", "/data", 900 << 40, 400 << 40),
}


def disk(use: str, path: str, type_: str, mount: str, total: int, free: int) -> dict[str, object]:
    """A file system; those that are not local are the same on all nodes."""
    return {
        "use": use,
        "path": path,
        "mount": mount,
        "type": type_,
        "identity": f"{type_}:server:{mount}:144115205255725057" if type_ in ("nfs4", "lustre") else f"local:{mount}",
        "total": total,
        "free": free,
        "inodes_free": 1 << 30,
        "writable": True,
        "refused": None,
        "checkpoint": None,
    }


def switch(slot: int, device: int) -> str:
    """The path of a device below the PCI switch of a slot: 0 is the card, 1 the HCA."""
    bus = BUSES[slot]
    number = int(bus, 16)
    ports = f"0000:{number + 1:02x}:00.0/0000:{number + 2:02x}:{device:02x}.0"
    return f"pci0000:{bus}/0000:{bus}:01.0/{ports}/0000:{number + 3 + device:02x}:00.0"


def numa_of(slot: int) -> int:
    return 0 if slot < len(BUSES) // 2 else 1


def add_gpus(
    machine: Machine, name: str = "NVIDIA H800", *, mib: int = H800_MIB, mig: str = "Disabled", hcas: Sequence[str] = ()
) -> None:
    """Add eight GPUs, one below each switch, and nvidia-smi."""
    rows = []
    for slot in range(len(BUSES)):
        device = machine.pci(switch(slot, 0), vendor="0x10de", class_="0x030200", numa=numa_of(slot))
        uuid = f"GPU-{slot:08x}-1a58-7e3c-5166-{int(machine.name[1:]):012x}"
        address = f"0000{Path(device).name.upper()}"
        values = {
            "index": str(slot),
            "uuid": uuid,
            "name": name,
            "pci.bus_id": address,
            "driver_version": "550.54.15",
            "memory.total": str(mib),
            "memory.used": "4",
            "utilization.gpu": "[N/A]" if mig == "Enabled" else "0",
            "temperature.gpu": "31",
            "power.draw": "71.32",
            "power.limit": "700.00",
            "pstate": "P0",
            "mig.mode.current": mig,
            "compute_mode": "Default",
            "persistence_mode": "Enabled",
            "ecc.mode.current": "Enabled",
            "ecc.errors.corrected.volatile.total": "0",
            "ecc.errors.uncorrected.volatile.total": "0",
            "ecc.errors.corrected.aggregate.total": "0",
            "ecc.errors.uncorrected.aggregate.total": "0",
            "pcie.link.gen.current": "5",
            "pcie.link.gen.max": "5",
            "pcie.link.width.current": "16",
            "pcie.link.width.max": "16",
            "clocks_event_reasons.active": "0x0000000000000001",
        }
        rows.append(values)
        machine.files[f"/dev/nvidia{slot}"] = ""
    header = ", ".join(rows[0])
    remapped = (
        "gpu_uuid, remapped_rows.correctable, remapped_rows.uncorrectable, remapped_rows.pending, remapped_rows.failure"
    )
    machine.tools.update(
        {
            "nvidia-smi --query-gpu": "".join(
                f"{line}\n" for line in [header, *(", ".join(row.values()) for row in rows)]
            ),
            "nvidia-smi --query-compute-apps": "pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n",
            "nvidia-smi --query-remapped-rows": "\n".join(
                [remapped, *(f"{row['uuid']}, 0, 0, No, No" for row in rows), ""]
            ),
            "nvidia-smi topo -m": topology(hcas),
            "nvidia-smi nvlink -e": "".join(
                f"GPU {row['index']}: {row['name']} (UUID: {row['uuid']})\n\t Link 0: CRC Errors: 0\n\n" for row in rows
            ),
        }
    )


def topology(hcas: Sequence[str]) -> str:
    """The matrix of an H800 host: NVLink between the GPUs, the HCA of a slot below the same switch, others elsewhere."""
    gpus = [f"GPU{slot}" for slot in range(len(BUSES))]
    nics = [f"NIC{number}" for number in range(len(hcas))]
    slots = [*range(len(gpus)), *range(len(hcas))]
    numa = [*map(numa_of, range(len(gpus))), *(0 if hca == STORAGE else numa_of(slot) for slot, hca in enumerate(hcas))]

    def cell(a: int, b: int) -> str:
        if a == b:
            return "X"
        if a < len(gpus) and b < len(gpus):
            return "NV8"
        if slots[a] == slots[b]:
            return "PIX"
        return "NODE" if numa[a] == numa[b] else "SYS"

    names = [*gpus, *nics]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row, name in enumerate(names):
        cells = [cell(row, column) for column in range(len(names))]
        affinity = [["0-47,96-143", "0", "N/A"], ["48-95,144-191", "1", "N/A"]][numa_of(row)] if row < len(gpus) else []
        lines.append("\t".join([name, *cells, *affinity]))
    legend = [f"  {nic}: {hca}" for nic, hca in zip(nics, hcas, strict=True)]
    return "\n".join([*lines, "", "NIC Legend:", "", *legend, ""])


INFINIBAND = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x1c",
    "sm_lid": "0x1",
}
ROCE = {**INFINIBAND, "rate": "200 Gb/sec (4X HDR)", "link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)", "lid": "0xffff"}


def mapped(address: str) -> str:
    """The GID of an IPv4 address."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def roce_gids(address: str, interface: str, *, with_ipv6: bool = False) -> list[Gid]:
    """The table of a RoCE port: each address of the interface has a slot per version of RoCE, so another address shifts the next."""
    gids = [
        "fe80:0000:0000:0000:0ac0:ebff:fe12:3456",
        *(["fd00:0000:0000:0000:0ac0:ebff:fe12:3456"] * with_ipv6),
        mapped(address),
    ]
    types = ("IB/RoCE v1", "RoCE v2")
    return [Gid(2 * at + version, gid, types[version], interface) for at, gid in enumerate(gids) for version in (0, 1)]


def add_infiniband(machine: Machine, slot: int, **changes: str) -> None:
    """Add mlx5_<slot> beside the card of the slot, with its IPoIB interface."""
    number = int(machine.name[1:])
    device = machine.pci(switch(slot, 1), vendor="0x15b3", class_="0x020700", numa=numa_of(slot))
    gid = Gid(0, f"fe80:0000:0000:0000:a088:c203:00{number:02x}:{slot:04x}", "IB/RoCE v1")
    port = {**INFINIBAND, "lid": hex(0x10 + 16 * number + slot), **changes}
    machine.hca(f"mlx5_{slot}", device, port, [gid])
    machine.interface(f"ib{slot}", device, type_=32, mbps=-1, up=port["state"] == INFINIBAND["state"])
    machine.address(f"ib{slot}", f"10.200.{slot}.{number + 1}/24")


def add_roce(machine: Machine, slot: int, *, with_ipv6: bool = False, **changes: str) -> None:
    """Add mlx5_<slot> beside the card of the slot, with its Ethernet interface."""
    number = int(machine.name[1:])
    device = machine.pci(switch(slot, 1), vendor="0x15b3", class_="0x020000", numa=numa_of(slot))
    name, address = f"ens{slot + 1}np0", f"10.100.{slot}.{number + 1}"
    machine.hca(f"mlx5_{slot}", device, {**ROCE, **changes}, roce_gids(address, name, with_ipv6=with_ipv6), slots=16)
    machine.interface(name, device, mbps=200000, files={"mtu": "9000"})
    machine.address(name, f"{address}/24", *(["fd00::ac0:ebff:fe12:3456/64"] * with_ipv6))


def add_storage(machine: Machine) -> None:
    """Add a storage NIC: two ports in bond0, as one RDMA device, on another root port of the first processor."""
    number = int(machine.name[1:])
    for port in (0, 1):
        device = machine.pci(f"pci0000:59/0000:59:01.0/0000:5a:00.{port}", vendor="0x15b3", class_="0x020000", numa=0)
        machine.interface(f"ens10f{port}np{port}", device, mbps=100000)
    first = "pci0000:59/0000:59:01.0/0000:5a:00.0"
    gids = roce_gids(f"10.20.0.{number + 1}", "bond0")
    machine.hca(STORAGE, first, {**ROCE, "rate": "100 Gb/sec (4X EDR)"}, gids, slots=16)
    machine.interface("bond0", mbps=200000, files={"bonding/mode": "802.3ad 4"})
    machine.address("bond0", f"10.20.0.{number + 1}/24")
    for port in (0, 1):
        slave = f"/sys/devices/pci0000:59/0000:59:01.0/0000:5a:00.{port}/net/ens10f{port}np{port}"
        machine.links[f"{slave}/master"] = "/sys/devices/virtual/net/bond0"


def h800(number: int = 0, *, down: int | None = None, mig: str = "Disabled") -> Machine:
    """Eight H800 with an InfiniBand HCA each, and a storage NIC."""
    machine = server(number)
    for slot in range(len(BUSES)):
        add_infiniband(machine, slot, **(DOWN if slot == down else {}))
    add_storage(machine)
    add_gpus(machine, mig=mig, hcas=[*(f"mlx5_{slot}" for slot in range(len(BUSES))), STORAGE])
    return machine


def roce(number: int = 0) -> Machine:
    """Eight H800 with a RoCE HCA each; on every second node an IPv6 address shifts the GID of the IPv4 address from 3 to 5."""
    machine = server(number)
    for slot in range(len(BUSES)):
        add_roce(machine, slot, with_ipv6=number % 2 == 1)
    add_gpus(machine, hcas=[f"mlx5_{slot}" for slot in range(len(BUSES))])
    return machine


def mixed(number: int = 0) -> Machine:
    """Eight H800; the HCAs of the first processor are on InfiniBand, those of the second on Ethernet."""
    machine = server(number)
    for slot in range(len(BUSES)):
        (add_roce if numa_of(slot) else add_infiniband)(machine, slot)
    add_gpus(machine, hcas=[f"mlx5_{slot}" for slot in range(len(BUSES))])
    return machine


def port_down(number: int = 0) -> Machine:
    """As h800, with the port of mlx5_3 down on the first node."""
    return h800(number, down=3 if number == 0 else None)


def mig(number: int = 0) -> Machine:
    """As h800, with the GPUs in MIG mode."""
    return h800(number, mig="Enabled")


def no_rdma(number: int = 0) -> Machine:
    """Eight H800, two Ethernet networks and Docker's bridge."""
    machine = server(number)
    second = machine.pci("pci0000:59/0000:59:01.0/0000:5a:00.0", vendor="0x8086", class_="0x020000", numa=0)
    machine.interface("ens2", second, mbps=25000)
    machine.address("ens2", f"192.168.10.{number + 1}/24")
    add_docker(machine)
    add_gpus(machine)
    return machine


def add_docker(machine: Machine) -> None:
    machine.interface("docker0", up=False, files={"bridge/bridge_id": "8000.0242d2b5a1c7"})
    machine.address("docker0", "172.17.0.1/16")


def container(number: int = 0) -> Machine:
    """As h800, in a container that sees the HCAs in sysfs but has no /dev/infiniband, and with limits of CPU and memory."""
    machine = h800(number)
    for path in [path for path in machine.files if path.startswith("/dev/infiniband")]:
        del machine.files[path]
    machine.files["/proc/self/cgroup"] = "0::/"
    machine.files["/sys/fs/cgroup/cpu.max"] = "3200000 100000"
    machine.files["/sys/fs/cgroup/memory.max"] = str(512 * GIB)
    return machine


def cpu(number: int = 0) -> Machine:
    """No cards and no RDMA."""
    return server(number, cards="")


def t20(number: int = 0) -> Machine:
    """Eight T20, whose efsmi prints a table and no sections; a second network without RDMA."""
    machine = server(number, cards="T20")
    machine.given["software"] = SOFTWARE["t20"]
    second = machine.pci("pci0000:59/0000:59:01.0/0000:5a:00.0", vendor="0x8086", class_="0x020000", numa=0)
    machine.interface("ens5f0", second, mbps=25000)
    machine.address("ens5f0", f"192.168.10.{number + 1}/24")
    add_gcus(machine)
    head, row = _parts("efsmi-t20.txt", "* 0 ", "* 1 ")
    machine.tools.update({"efsmi": head + "".join(row(slot) for slot in range(8)), "efsmi -q": 1})
    return machine


def s60(number: int = 0) -> Machine:
    """Eight S60, whose efsmi prints sections, and two RoCE HCAs."""
    machine = server(number, cards="S60")
    machine.given["software"] = SOFTWARE["s60"]
    add_gcus(machine)
    for slot in (0, 4):
        add_roce(machine, slot)
    head, row = _parts("efsmi-q-s60.txt", "DEV ID 0", "DEV ID 1")
    machine.tools.update({"efsmi -q": head + "".join(row(slot) for slot in range(8))})
    machine.tools["efsmi"] = 1
    return machine


def add_gcus(machine: Machine) -> None:
    for slot in range(len(BUSES)):
        machine.pci(switch(slot, 0), vendor="0x1e36", class_="0x120000", numa=numa_of(slot))
        machine.files[f"/dev/gcu{slot}"] = ""


def _parts(sample: str, first: str, second: str) -> tuple[str, Callable[[int], str]]:
    """A published output up to its first card, and that card's text with another slot's index, address and serial number."""
    text = (CASES / "vendor" / sample).read_text("utf-8")
    begin, end = text.index(first), text.index(second)

    def row(slot: int) -> str:
        bus = Path(switch(slot, 0)).name.split(":")[1]
        changes = {
            first: first.replace("0", str(slot)),
            "00:3d:0.0": f"00:{bus}:0.0",
            "Bus                     : 0d": f"Bus                     : {bus}",
            "Used Size               : 38934": "Used Size               : 0",
            "W28001210504": f"W2800121050{slot}",
            "TPUH90200803": f"TPUH9020080{slot}",
        }
        card = text[begin:end]
        for old, new in changes.items():
            card = card.replace(old, new)
        return card

    return text[:begin], row


KINDS: dict[str, Callable[[int], Machine]] = {
    "h800": h800,
    "roce": roce,
    "mixed": mixed,
    "port-down": port_down,
    "no-rdma": no_rdma,
    "t20": t20,
    "s60": s60,
    "container": container,
    "cpu": cpu,
    "mig": mig,
}
