"""The folders that a run writes to: space for two checkpoints, inodes, a file that can be written, and one that all nodes share."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.node.facts import Disk
from orchestrator.node.number_text import three_digits
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.findings import Finding, Severity

FOLDERS = ("workdir", "out", "tmp", "home")
WITH_CHECKPOINTS = ("workdir", "out")
MIB = 1 << 20
FULL_BYTES = GIB // 4  # with less, not even logs and code have space
LEAST_CHECKPOINT_BYTES = 10 * GIB  # of two checkpoints of a model of 500 million parameters
LEAST_INODES = 10_000


def disk(cluster: Cluster) -> Iterator[Finding]:
    """Each folder must be writable and have space and inodes; those with checkpoints have space for two."""
    for node, facts in cluster.facts.items():
        for entry in facts["disks"]:
            if entry["use"] in FOLDERS:
                fault = _fault(entry)
                if fault is not None:
                    severity, text = fault
                    remedy = "choose another folder in the inventory"
                    if not entry["refused"]:
                        remedy = f"free space there (`orch gc` removes old runs), or {remedy}"
                    evidence = f"{entry['path']} on {entry['mount']} ({entry['type']})"
                    yield Finding(severity, "disk", text, (node,), evidence=evidence, remedy=remedy)


def shared(cluster: Cluster) -> Iterator[Finding]:
    """A token that one node wrote must be there on all nodes that share the folder."""
    for test in cluster.shared:
        if test.error:
            text = f"{test.path} cannot be written: {test.error}"
            remedy = "mount it read-write, or choose another workdir:"
            yield Finding(Severity.FAIL, "shared", text, (test.writer,), remedy=remedy)
        for node, reason in test.readers.items():
            if reason:
                text = f"{test.path}: the file that {test.writer} wrote there is not on this node: {reason}"
                remedy = "mount the same file system there (findmnt -T shows what is mounted)"
                yield Finding(Severity.FAIL, "shared", text, (node,), remedy=remedy)


def _fault(entry: Disk) -> tuple[Severity, str] | None:
    name, free = entry["use"], entry["free"]
    severity = Severity.FAIL if name != "home" else Severity.WARN
    if entry["refused"]:
        return severity, f"{name}: {entry['refused']}"
    if entry["writable"] is False:
        return severity, f"{name} {entry['path']} cannot be written"
    if free < FULL_BYTES:
        return severity, f"{name} is full: {_size(free)} left"
    if entry["inodes_free"] is not None and 0 < entry["inodes_free"] < LEAST_INODES:
        return severity, f"{name} has {entry['inodes_free']} inodes left"
    return _space_for_checkpoints(entry) if name in WITH_CHECKPOINTS else None


def _space_for_checkpoints(entry: Disk) -> tuple[Severity, str] | None:
    """
    Judge by the newest checkpoint in the folder, if there is one.

    In `out` it is of the same training, so that a start without space for another one is of no use. In a workdir it may be of
    another model.
    """
    name, free, size = entry["use"], entry["free"], entry["checkpoint"]
    if size is None:
        text = f"{name} has {_size(free)} free, which may not hold two checkpoints"
        return (Severity.INFO, text) if free < LEAST_CHECKPOINT_BYTES else None
    if free >= 2 * size:
        return None
    is_certain = name == "out" and free < size
    text = f"{name} has {_size(free)} free, and its newest checkpoint has {_size(size)}: no space for "
    return (Severity.FAIL, f"{text}the next one") if is_certain else (Severity.WARN, f"{text}two more")


def _size(count: float) -> str:
    return f"{three_digits(count / GIB)} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
