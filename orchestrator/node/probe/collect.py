"""The steps of the probe, and how their results make the facts of a node."""

from __future__ import annotations

import os
import time
from functools import partial

from orchestrator.node.probe import code, disks, hardware, infiniband, network, software, system
from orchestrator.node.probe.pci import may_have_cards
from orchestrator.node.probe.source import Source
from orchestrator.node.probe.steps import run_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Dict, List, Optional, TypedDict

    from orchestrator.node.facts import Card, CardProcess, Cpus, Memory, NodeFacts
    from orchestrator.node.probe.steps import Group, Step, StepResult

    class ProbeRequest(TypedDict):
        """
        The controller's part: `names` are to be resolved, `folders` are paths by their use (workdir, out), `code` is the user's code.

        The home folder, /tmp and /dev/shm are added.
        """

        node: str
        names: List[str]
        folders: Dict[str, str]
        code: Optional[str]

    Runner = Callable[[Sequence[Group], Source], Dict[str, StepResult]]


FORMAT = 1  # as facts.FORMAT: importing facts.py takes as long as three steps
# Seconds for a group. All are below PROBE_S of endpoint/client.py.
SYSFS_S, DISK_S, TOOLS_S, NAMES_S, PYTHON_S, CODE_S = 5.0, 5.0, 15.0, 8.0, 15.0, 10.0
NO_CPUS: Cpus = {"total": 0, "usable": 0, "quota": None, "governor": None, "numa": []}  # the step failed, see `missing`
NO_MEMORY: Memory = {"total": 0, "available": 0, "cgroup_limit": None, "swap_total": 0}
ALWAYS = {"home": "~", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  looked at only
LOCAL = frozenset(("/tmp", "/dev/shm"))  # noqa: S108  never on a server that may be silent


def groups_of(request: ProbeRequest, source: Source) -> List[Group]:
    """
    The steps in groups, the slow ones first; a step's name begins with the fact.

    The programs of a driver are one group each, if there is a driver: each may block.
    """
    nvidia: Dict[str, Step] = {
        "cards.nvidia": card_step("nvidia"),
        "cards.processes": card_step("processes"),
        "cards.rows": card_step("rows"),
        "topology": card_step("topology"),
        "nvlink": card_step("nvlink"),
    }
    gcu_and_cuda: Dict[str, Step] = {"cards.enflame": card_step("enflame"), "software.cuda": software.cuda_version}
    has_driver = source.exists("/dev/nvidiactl") or source.exists("/proc/driver/nvidia")
    groups: List[Group] = [({"software": software.installed, "software.nccl": software.nccl}, PYTHON_S)]
    groups += [({name: step}, TOOLS_S) for name, step in nvidia.items()] if has_driver else []
    groups.append((gcu_and_cuda if has_driver else {**nvidia, **gcu_and_cuda}, TOOLS_S))
    path = request["code"]
    if path is not None:
        groups.append(({"code": lambda source: code.code(source, path)}, CODE_S))
    folders = {**ALWAYS, **request["folders"]}
    for path_ in sorted(set(folders.values()) - LOCAL):
        groups.append((disk_steps({use: path for use, path in folders.items() if path == path_}), DISK_S))
    if request["names"]:
        groups.append(({"names": lambda source: system.resolve(source, request["names"], NAMES_S - 1)}, NAMES_S))
    groups.append(({"hcas": infiniband.hcas, "interfaces": network.interfaces}, SYSFS_S))
    local: Dict[str, Step] = {
        "cpus": hardware.cpus,
        "memory": hardware.memory,
        "limits": hardware.limits,
        "clock": system.is_synchronized,
        "addresses": lambda _: network.kernel_addresses(),
        **disk_steps({use: path for use, path in folders.items() if path in LOCAL}),
        "kernel_messages": system.kernel_messages,
        "nccl_conf": system.nccl_conf,
    }
    return [*groups, (local, SYSFS_S)]


def card_step(name: str) -> Step:
    """The function of this name in cards.py; None without cards."""

    def step(source: Source) -> object:
        if not may_have_cards(source):
            return None
        from orchestrator.node.probe import cards  # slow to import, and nodes without cards do not need it

        return getattr(cards, name)(source)

    return step


def disk_steps(folders: Mapping[str, str]) -> Dict[str, Step]:
    return {f"disks.{use}": partial(disks.disk, use=use, path=path) for use, path in folders.items()}


def collect(request: ProbeRequest, source: Source, run: Runner = run_groups) -> NodeFacts:
    begun_s, begun = time.time(), time.monotonic()
    results = run(groups_of(request, source), source)
    value: Dict[str, Any] = {name: result.get("value") for name, result in results.items()}
    found = value["software"] or {}
    packages: Dict[str, str] = found.get("packages") or {}
    gpus, gcus = value["cards.nvidia"] or {}, value["cards.enflame"] or {}
    interfaces = value["interfaces"] or []
    missing = {key: why for result in results.values() for key, why in result["missing"].items()}
    if "addresses" in missing:  # interfaces without their addresses are of no use
        missing["interfaces"] = missing.pop("addresses")
    for interface in interfaces:
        interface["addresses"] = (value["addresses"] or {}).get(interface["name"], [])
    return {
        "format": FORMAT,
        "node": request["node"],
        "seconds": round(time.monotonic() - begun, 3),
        "cpus": value["cpus"] or NO_CPUS,
        "memory": value["memory"] or NO_MEMORY,
        "limits": value["limits"] or {},
        "disks": [value[name] for name in results if name.startswith("disks.") and value[name]],
        "clock": {"time": begun_s, "synchronized": value["clock"]},
        "names": {"hostname": system.hostname(source), "resolved": value.get("names") or {}},
        "interfaces": interfaces,
        "hcas": value["hcas"] or [],
        "cards": [*with_details(gpus.get("cards", []), value), *gcus.get("cards", [])],
        "topology": value["topology"] or {},
        "software": {
            "python": found.get("python") or "",
            "executable": found.get("executable") or "",
            "kernel": source.text("/proc/sys/kernel/osrelease") or os.uname().release,
            "driver": gpus.get("driver") or gcus.get("driver"),
            "cuda": value["software.cuda"],
            "torch": packages.get("torch"),
            "torch_cuda": found.get("torch_cuda"),
            "torch_gcu": packages.get("torch-gcu"),
            "deepspeed": packages.get("deepspeed"),
            "nccl": value["software.nccl"],
            "packages": packages,
            "packages_hash": found.get("packages_hash"),
            "import_folders": found.get("import_folders") or [],
        },
        "code": value.get("code"),
        "kernel_messages": value["kernel_messages"] or [],
        "environment": system.environment(source),
        "nccl_conf": value["nccl_conf"] or {},
        "tools": [tool for result in results.values() for tool in result["tools"]],
        "missing": missing,
    }


def with_details(gpus: List[Card], value: Mapping[str, Any]) -> List[Card]:
    """The GPUs with their processes and the counters of replaced memory rows and of NVLink, which other calls of the tool print."""
    processes: Dict[str, List[CardProcess]] = value["cards.processes"] or {}
    counters: List[Dict[str, Dict[str, str]]] = [value["cards.rows"] or {}, value["nvlink"] or {}]
    for card in gpus:
        card["processes"] = processes.get(card["uuid"] or "", [])
        for by_uuid in counters:
            card["health"].update(by_uuid.get(card["uuid"] or "", {}))
    return gpus
