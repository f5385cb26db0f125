"""Processors, memory and resource limits, from procfs, sysfs and the cgroup of this process."""

from __future__ import annotations

import re

from orchestrator.node.number_text import parse_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Dict

    from orchestrator.node.facts import Cpus, Limit, Memory
    from orchestrator.node.probe.source import Source

CPU = "/sys/devices/system/cpu"
NUMA = "/sys/devices/system/node"
CGROUP = "/sys/fs/cgroup"
KB = 1024
UNLIMITED = 1 << 60  # cgroup v1 has no word for it, but the largest multiple of a page
# Rows of /proc/self/limits by the name in limits.conf.
LIMITS = {
    "nofile": "Max open files",
    "nproc": "Max processes",
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "as": "Max address space",
    "fsize": "Max file size",
}
NUMBER = re.compile(r"[0-9]{1,20}\Z")  # of 64 bits


def cpus(source: Source) -> Cpus:
    online = source.text(f"{CPU}/online") or ""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", source.text("/proc/self/status") or "", re.MULTILINE)
    total = len(parse_numbers(online) or ()) or len(
        re.findall(r"^processor\s*:", source.text("/proc/cpuinfo") or "", re.MULTILINE)
    )
    policies = [name for name in source.names(f"{CPU}/cpufreq") if name.startswith("policy")]
    governors = {source.text(f"{CPU}/cpufreq/{name}/scaling_governor") for name in policies} - {None}
    folders = [name for name in source.names(NUMA) if re.match(r"node\d+\Z", name)]
    lists = {int(name[len("node") :]): source.text(f"{NUMA}/{name}/cpulist") for name in folders}
    quotas = []  # of this process's cgroup and those above it, in CPUs
    for folder in cgroups(source, "cpu"):
        words = (source.text(f"{folder}/cpu.max") or "").split()
        if not words:
            words = [source.text(f"{folder}/cpu.cfs_quota_us") or "", source.text(f"{folder}/cpu.cfs_period_us") or ""]
        if len(words) == 2 and all(map(NUMBER.match, words)) and int(words[1]):  # noqa: PLR2004  quota and period
            quotas.append(int(words[0]) / int(words[1]))
    return {
        "total": total,
        "usable": len((parse_numbers(allowed.group(1)) if allowed else None) or ()) or total,
        "quota": min(quotas, default=None),
        "governor": ",".join(sorted(filter(None, governors))) or None,
        "numa": [{"node": node, "cpus": text} for node, text in sorted(lists.items()) if text],
    }


def memory(source: Source) -> Memory:
    lines = (line.split() for line in (source.text("/proc/meminfo") or "").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * KB for words in lines if len(words) > 1 and NUMBER.match(words[1])}
    if "MemTotal" not in sizes:
        source.missing.setdefault("memory.total", "/proc/meminfo has no MemTotal")
    total = sizes.get("MemTotal", 0)
    limits = [
        limit for limit in cgroup_numbers(source, "memory", "memory.max", "memory.limit_in_bytes") if limit < UNLIMITED
    ]
    return {
        "total": total,
        "available": sizes.get("MemAvailable", sizes.get("MemFree", 0)),
        "cgroup_limit": min(limits, default=None),
        "swap_total": sizes.get("SwapTotal", 0),
    }


def cgroup_numbers(source: Source, controller: str, *files: str) -> Iterator[int]:
    for folder in cgroups(source, controller):
        for file in files:
            text = source.text(f"{folder}/{file}")
            if text is not None and NUMBER.match(text):  # not `max`
                yield int(text)


def cgroups(source: Source, controller: str) -> Iterator[str]:
    """The folders of this process's cgroup and of those above it, of version 2 and of this controller of version 1."""
    for line in (source.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = f"{CGROUP}/{controllers}" if controllers else CGROUP
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:depth]])


def limits(source: Source) -> Dict[str, Limit]:
    """The limits of this process, which those that it starts inherit."""
    text = source.text("/proc/self/limits") or ""
    found: Dict[str, Limit] = {}
    for name, row in LIMITS.items():
        values = re.search(rf"^{row}\s+(\d+|unlimited)\s+(\d+|unlimited)\b", text, re.MULTILINE)
        if values is None:
            source.missing[f"limits.{name}"] = "not in /proc/self/limits"
        else:
            soft, hard = (None if value == "unlimited" else int(value) for value in values.groups())
            found[name] = {"soft": soft, "hard": hard}
    return found
