"""
The network that NCCL took between the nodes, after the first step; and a warning if it is not the expected one.

NCCL prints it (`NCCL INFO Using network Socket`) at NCCL_DEBUG=INFO and above. Without that line, the open files of the ranks show
it: NCCL keeps its RDMA devices open (/dev/infiniband/uverbs0, …), so ranks that have reported a step without one use sockets. NCCL
opens them at the first collective, so before a step their absence means nothing: the ranks may be loading a model.
"""

from __future__ import annotations

import os
import time

from orchestrator.node.agent.idle_cards import reported_steps
from orchestrator.node.run.run_folder import NETWORK_REPORT, output_stem, process_name, started_ranks
from orchestrator.node.system.fast_stdlib import suppress
from orchestrator.node.system.files import NotPlainFile, read_at, write_json
from orchestrator.node.system.processes import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Optional, Set, Tuple

    from orchestrator.node.run.agent_files import NetworkBody
    from orchestrator.node.run.events import EventLog
    from orchestrator.node.run.job import Job

LINE = rb"NCCL INFO Using network (\w[\w .-]{0,40})"
HEAD_BYTES = 1 << 20  # of a rank's output: NCCL starts before the first step
MOST_POLLS = 10  # ranks that do not show it by then never will
SOCKET = "Socket"
CARD, VERBS = "/dev/nvidia", "/dev/infiniband/uverbs"  # before a number
PINNED = {"infiniband": "IB", "roce": "RoCE", "ethernet": ""}


class NetworkWatch:
    """Looks once a minute until the network is known. Without an expectation there is nothing to look for."""

    def __init__(self, job: Job, folder: str, events: EventLog) -> None:
        self._job, self._folder, self._events = job, folder, events
        self._expected, self._ports = expected_network(job.network, os.environ) if len(job.ranks) > 1 else ("", [])
        self._polls = 0 if self._expected and job.accelerator in ("auto", "cuda") else MOST_POLLS
        self._due_s = time.monotonic() + job.card_sample_s

    def poll(self) -> None:
        """Look for the network if it is time, and report it once."""
        if self._polls >= MOST_POLLS or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self._job.card_sample_s
        steps = reported_steps(self._folder, started_ranks(self._folder, self._job.rank_numbers))
        if steps.newest is not None and steps.newest < 1:
            return
        self._polls += 1
        taken, evidence = printed_network(self._folder, self._job.processes)
        if not taken:
            devices = map(open_devices, descendants())
            taken, evidence = network_of_open_devices(devices, after_step=steps.newest is not None)
        if taken:
            self._polls = MOST_POLLS
            ports = (
                f"active RDMA ports: {', '.join(self._ports)}" if self._ports else "no RDMA port of the node is active"
            )
            expected, evidence = self._expected, f"{evidence}; {ports}"
            body: NetworkBody = {
                "time": self._events.clock.now(),
                "expected": expected,
                "taken": taken,
                "evidence": evidence,
            }
            with suppress(OSError):  # a full disk must not end the run
                write_json(os.path.join(self._folder, NETWORK_REPORT), body)
            if taken == SOCKET:
                self._events.write_message(f"warning: expected {expected}, got {SOCKET}: {evidence}")


def expected_network(network: str, environ: Mapping[str, str], root: str = "/") -> Tuple[str, List[str]]:
    """
    IB or RoCE, and the active RDMA ports: by the inventory, or the node's ports. Empty if sockets are what the user wants.
    `network`: the inventory's.
    """
    ports = active_ports(root)
    is_disabled = (
        environ.get("NCCL_IB_DISABLE", "0").strip() not in ("", "0") or environ.get("NCCL_NET", "").lower() == "socket"
    )
    layers = set(ports.values())
    found = "IB" if "InfiniBand" in layers else "RoCE" if layers else ""
    return "" if is_disabled else PINNED.get(network, found), sorted(ports)


def active_ports(root: str) -> Mapping[str, str]:
    """The active ports of the RDMA devices, such as mlx5_0:1, and their link layers."""
    folder = os.path.join(root, "sys/class/infiniband")
    found = {}
    with suppress(OSError):
        for device in os.listdir(folder):
            for port in os.listdir(os.path.join(folder, device, "ports")):
                path = os.path.join(folder, device, "ports", port)
                if first_line(f"{path}/state").endswith("ACTIVE"):
                    found[f"{device}:{port}"] = first_line(f"{path}/link_layer")
    return found


def first_line(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.readline().strip()
    return ""


def printed_network(folder: str, processes: Iterable[Optional[int]]) -> Tuple[str, str]:
    """The network by the first line about it that a rank printed, preferably about sockets; and that line. Empty without one."""
    import re  # slow to import

    lines: Dict[str, str] = {}
    for rank in processes:
        for stream in ("out", "err"):
            with suppress(NotPlainFile):
                found = re.search(LINE, read_at(os.path.join(folder, f"{output_stem(rank)}.{stream}"), 0, HEAD_BYTES))
                if found:
                    line = f"{process_name(rank)} printed `{found.group(0).decode()}`"
                    lines.setdefault(found.group(1).decode().strip(), line)
    taken = SOCKET if SOCKET in lines else next(iter(lines), "")
    return taken, lines.get(taken, "")


def network_of_open_devices(processes: Iterable[Set[str]], *, after_step: bool) -> Tuple[str, str]:
    """RDMA or, after a step, Socket, by the open devices of the processes that have a card open; empty if these do not show it."""
    with_card = [devices for devices in processes if any(is_numbered(device, CARD) for device in devices)]
    verbs = sorted({device for devices in with_card for device in devices if is_numbered(device, VERBS)})
    if verbs:
        return "RDMA", f"the ranks have {', '.join(verbs)} open"
    if with_card and after_step:
        return SOCKET, "no rank has an RDMA device open (/dev/infiniband/uverbs*)"
    return "", ""


def is_numbered(device: str, prefix: str) -> bool:
    return device.startswith(prefix) and device[len(prefix) :].isdecimal()


def open_devices(pid: int) -> Set[str]:
    """The devices that a process has open; empty if this user may not see that."""
    devices = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                devices.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {device for device in devices if device.startswith("/dev/")}
