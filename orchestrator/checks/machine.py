"""Limits, memory, clock rate and clocks of a node's operating system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.checks.cluster import GIB, Cluster
from orchestrator.findings import Finding, Severity
from orchestrator.node.digits import three_digits
from orchestrator.node.files import LEAST_FILE_BYTES

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
            remedy = f"raise nofile in {LIMITS_CONF} LimitNOFILE="
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
            remedy = f"set memlock unlimited in {LIMITS_CONF} LimitMEMLOCK=infinity"
            yield Finding(Severity.WARN, "memlock", text, (node,), remedy=remedy)


def shared_memory(cluster: Cluster) -> Iterator[Finding]:
    """NCCL and the workers of data loaders exchange data through /dev/shm."""
    for node, facts in cluster.facts.items():
        for disk in facts["disks"]:
            if disk["use"] == "shm" and disk["total"] < SHARED_MEMORY_BYTES and cluster.uses_cards(node):
                text = f"{disk['path']} has {three_digits(disk['total'] / GIB)} GiB; NCCL and data loaders need {SHARED_MEMORY_BYTES // GIB}"
                remedy = "start the container with --shm-size=16g or --ipc=host"
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
    usual, reference, gap_s = 0.0, "this machine", _greatest_gap(cluster.clocks)
    has_majority = len(cluster.clocks) > 2  # noqa: PLR2004
    if has_majority:
        middles = sorted((least + most) / 2 for least, most in cluster.clocks.values())
        usual, reference = middles[len(middles) // 2], "most nodes"
    for node, (least, most) in cluster.clocks.items():
        ahead = max(0.0, least - usual) or min(0.0, most - usual)
        if abs(ahead) >= WARN_SKEW_S:
            text = (
                f"the clock is {three_digits(abs(ahead))} s {'ahead of' if ahead > 0 else 'behind'} that of {reference}"
            )
            severity = Severity.FAIL if (abs(ahead) if has_majority else gap_s) >= FAIL_SKEW_S else Severity.WARN
            evidence = (
                "" if has_majority or not gap_s else f"the clocks of both nodes are {three_digits(gap_s)} s apart"
            )
            remedy = "start chronyd or systemd-timesyncd, and set the clock once with chronyc makestep"
            yield Finding(severity, "clock", text, (node,), evidence, remedy)
    drifting = {node for node, facts in cluster.facts.items() if facts["clock"]["synchronized"] is False}
    if drifting and len(drifting) < len(cluster.facts):  # in a container or a virtual machine, the host keeps the clock
        text = "no time daemon keeps the clock; it does on the other nodes"
        nodes = tuple(node for node in cluster.facts if node in drifting)
        yield Finding(Severity.WARN, "clock", text, nodes, remedy="start chronyd or systemd-timesyncd")


def _greatest_gap(clocks: Mapping[str, tuple[float, float]]) -> float:
    """The least number of seconds between the clocks of the nodes that are farthest apart; 0 for one node."""
    return (
        max(0.0, max(least for least, _ in clocks.values()) - min(most for _, most in clocks.values()))
        if clocks
        else 0.0
    )
