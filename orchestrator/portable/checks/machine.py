"""Limits, memory, clock rate and clocks of a node's operating system."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.node.number_text import three_digits
from orchestrator.node.system.files import LEAST_FILE_BYTES
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.findings import Finding, Severity

OPEN_FILES = 4096
PROCESSES_PER_RANK = 512  # threads count as processes: a rank has about 100, and each data loader worker more
LOCKED_BYTES = 32 * GIB
SHARED_MEMORY_BYTES = 8 * GIB
WARN_SKEW_S, FAIL_SKEW_S = 1.0, 30.0
LIMITS_CONF = "/etc/security/limits.d/, and for systemd's sshd or slurmd"


def open_files(cluster: Cluster) -> Iterator[Finding]:
    """The agent raises the soft limit to the hard one, so only the hard limit counts."""
    for node, value in cluster.values(lambda facts: facts["limits"].get("nofile")).items():
        limit = value["hard"]
        if limit is not None and limit < OPEN_FILES:
            text = f"a process may open {limit} files; data loaders and NCCL need {OPEN_FILES}"
            remedy = cluster.recreate(node, "--ulimit=nofile=1048576")
            remedy = remedy or f"raise nofile in {LIMITS_CONF} LimitNOFILE="
            yield Finding(Severity.FAIL, "nofile", text, (node,), remedy=remedy)


def file_size(cluster: Cluster) -> Iterator[Finding]:
    """An agent does not start if it cannot write its records."""
    for node, value in cluster.values(lambda facts: facts["limits"].get("fsize")).items():
        limit = value["soft"]
        if limit is not None and limit < LEAST_FILE_BYTES:
            text = f"a file may have {limit >> 10} KiB; an agent needs {LEAST_FILE_BYTES >> 10}"
            remedy = f"raise fsize in {LIMITS_CONF} LimitFSIZE="
            yield Finding(Severity.FAIL, "fsize", text, (node,), remedy=remedy)


def user_processes(cluster: Cluster) -> Iterator[Finding]:
    """The limit counts the threads of all processes of the user on the node."""
    for node, value in cluster.values(lambda facts: facts["limits"].get("nproc")).items():
        limit, needed = value["soft"], PROCESSES_PER_RANK * cluster.expected[node].ranks
        if limit is not None and limit < needed:
            text = f"the user may have {limit} processes and threads; its ranks need up to {needed}"
            remedy = f"raise nproc in {LIMITS_CONF} TasksMax="
            yield Finding(Severity.WARN, "nproc", text, (node,), remedy=remedy)


def locked_memory(cluster: Cluster) -> Iterator[Finding]:
    """RDMA needs locked memory for buffers."""
    for node, value in cluster.values(lambda facts: facts["limits"].get("memlock")).items():
        limit = value["soft"]
        if limit is not None and limit < LOCKED_BYTES and any(hca["usable"] for hca in cluster.facts[node]["hcas"]):
            text = f"a process may lock {three_digits(limit / GIB)} GiB of memory; RDMA needs {LOCKED_BYTES // GIB} GiB"
            remedy = cluster.recreate(node, "--ulimit=memlock=-1")
            remedy = remedy or f"set memlock unlimited in {LIMITS_CONF} LimitMEMLOCK=infinity"
            yield Finding(Severity.WARN, "memlock", text, (node,), remedy=remedy)


def shared_memory(cluster: Cluster) -> Iterator[Finding]:
    """NCCL and the workers of data loaders exchange data through /dev/shm."""
    for node, facts in cluster.facts.items():
        for disk in facts["disks"]:
            if disk["use"] == "shm" and disk["total"] < SHARED_MEMORY_BYTES and cluster.uses_cards(node):
                text = f"{disk['path']} has {three_digits(disk['total'] / GIB)} GiB; NCCL and data loaders need {SHARED_MEMORY_BYTES // GIB}"
                remedy = cluster.recreate(node, "--ipc=host") or "start the container with --shm-size=16g or --ipc=host"
                yield Finding(Severity.WARN, "shm", text, (node,), remedy=remedy)


def swap(cluster: Cluster) -> Iterator[Finding]:
    """With swap, a rank that runs out of memory slows all others down before it fails."""
    for node, facts in cluster.facts.items():
        size = facts["memory"]["swap_total"]
        if size and cluster.uses_cards(node):
            text, remedy = f"{size / GIB:.1f} GiB of swap are on", "turn it off with swapoff -a"
            yield Finding(Severity.INFO, "swap", text, (node,), remedy=remedy)


def governor(cluster: Cluster) -> Iterator[Finding]:
    """CPU clocks that follow the load delay the launch of kernels."""
    for node, name in cluster.values(lambda facts: facts["cpus"]["governor"]).items():
        if name in ("powersave", "conservative") and cluster.uses_cards(node):
            text, remedy = f"the CPU frequency governor is {name}", "cpupower frequency-set -g performance"
            yield Finding(Severity.INFO, "governor", text, (node,), remedy=remedy)


def clock(cluster: Cluster) -> Iterator[Finding]:
    """Clocks of nodes must agree: logs, timeouts and certificates compare their times. This machine's clock alone fails no node."""
    usual, reference = 0.0, "this machine"
    least, most = ([span[index] for span in cluster.clocks.values()] for index in (0, 1))
    gap_s = max(0.0, max(least, default=0.0) - min(most, default=0.0))  # between the nodes that are farthest apart
    has_majority = len(cluster.clocks) > 2  # noqa: PLR2004
    if has_majority:
        middles = sorted(sum(span) / 2 for span in cluster.clocks.values())
        usual, reference = middles[len(middles) // 2], "most nodes"
    for node, (least_s, most_s) in cluster.clocks.items():
        ahead = max(0.0, least_s - usual) or min(0.0, most_s - usual)
        if abs(ahead) >= WARN_SKEW_S:
            side = "ahead of" if ahead > 0 else "behind"
            text = f"the clock is {three_digits(abs(ahead))} s {side} that of {reference}"
            severity = Severity.FAIL if (abs(ahead) if has_majority else gap_s) >= FAIL_SKEW_S else Severity.WARN
            gap = f"the clocks of both nodes are {three_digits(gap_s)} s apart"
            evidence = "" if has_majority or not gap_s else gap
            remedy = "start chronyd or systemd-timesyncd, and set the clock once with chronyc makestep"
            yield Finding(severity, "clock", text, (node,), evidence, remedy)
    drifting = {node for node, facts in cluster.facts.items() if facts["clock"]["synchronized"] is False}
    if drifting and len(drifting) < len(cluster.facts):  # in a container or a virtual machine, the host keeps the clock
        text = "no time daemon keeps the clock; it does on the other nodes"
        nodes = tuple(node for node in cluster.facts if node in drifting)
        yield Finding(Severity.WARN, "clock", text, nodes, remedy="start chronyd or systemd-timesyncd")
