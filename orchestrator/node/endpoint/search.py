"""Search the logs of a run on this node, and the kernel log, for known texts. Only hits travel."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time

from orchestrator.node.digits import three_digits
from orchestrator.node.endpoint.report import READ_FIRST, clock_ahead_s, streams
from orchestrator.node.events import read_history
from orchestrator.node.files import full_disk
from orchestrator.node.machine import boot_id
from orchestrator.node.run_folder import node_folders, read_agent
from orchestrator.node.search import BLOCK_BYTES, TIME_OVER, Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Optional, Tuple

    from orchestrator.node import messages

MOST_HITS = 3  # of each pattern in one file
KERNEL_S = 2.0
LATE_S = 5.0  # messages of the kernel from after the end of a run may be about it
KERNEL_LOGS = (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic", "-n", "20000"))
_SINCE_BOOT = re.compile(r"^\[ *(\d+\.\d+)\]", re.MULTILINE)
LITTLE_MEMORY = 0.03  # of all


def search(request: messages.SearchRequest, _payload: bytes) -> Tuple[messages.SearchReply, bytes]:
    """Search the output of all ranks; of files larger than max_bytes only the end, and until wait_s have passed."""
    deadline = time.monotonic() + request["wait_s"]
    reply: messages.SearchReply = {"logs": [], "remarks": []}
    for node, folder in node_folders(request):
        for name, size in sorted(streams(folder)):
            if name in READ_FIRST:
                continue
            if time.monotonic() >= deadline:
                reply["remarks"].append(f"{node}: {name} was not searched: {TIME_OVER}")
                continue
            path = os.path.join(folder, name)
            log = _search_file(request, path, node=node, size=size, deadline=deadline)
            reply["logs"].append(log)
            if log["skipped"] + log["bytes"] < size:
                reply["remarks"].append(f"{node}: {name}: only its first part was searched: {TIME_OVER}")
        agent = read_agent(folder)
        if agent is not None and agent.get("boot_id") == boot_id():
            _search_machine(request, node, folder, period=period_s(folder, agent), reply=reply)
    return reply, b""


def _search_file(
    request: messages.SearchRequest, path: str, *, node: str, size: int, deadline: float
) -> messages.LogBody:
    found = Search(request["patterns"], MOST_HITS)
    skipped = max(0, size - request["max_bytes"])
    with open(path, "rb") as file:
        file.seek(skipped)
        while time.monotonic() < deadline:
            block = file.read(BLOCK_BYTES)
            if not block:
                break
            found.feed(block)
    found.close()
    return _log(found, node, os.path.basename(path), skipped)


def _log(found: Search, node: str, name: str, skipped: int) -> messages.LogBody:
    return {
        "node": node,
        "name": name,
        "skipped": skipped,
        "bytes": found.bytes,
        "hits": found.hits,
        "counts": found.counts,
        "progress_line": found.progress_line,
    }


def period_s(folder: str, agent: messages.AgentBody) -> Tuple[float, float]:
    """The start and the end of an agent of this boot, in seconds since boot; an unknown end is infinite."""
    finished, ahead_s = read_history(folder).finished, clock_ahead_s(agent)
    ended_s = math.inf if finished is None or ahead_s is None else finished["time"] - ahead_s
    return agent["start_time"] / os.sysconf("SC_CLK_TCK"), ended_s


def _search_machine(
    request: messages.SearchRequest, node: str, folder: str, *, period: Tuple[float, float], reply: messages.SearchReply
) -> None:
    """Search the kernel's log from the start to the end of the agent, and look at disks and memory."""
    text, reason = kernel_log()
    if text is None:
        reply["remarks"].append(f"{node}: the log of the kernel cannot be read: {reason}")
    else:
        found = Search([body for body in request["patterns"] if body["id"] in request["kernel"]], MOST_HITS)
        found.feed("".join(lines_between(text, *period)).encode("utf-8", "replace"))
        found.close()
        reply["logs"].append(_log(found, node, "kernel log", 0))
    disks = filter(None, map(full_disk, (folder, os.environ.get("TMPDIR", "/tmp"), "/dev/shm")))  # noqa: S108
    reply["remarks"] += [f"{node}: {disk}" for disk in disks]
    if memory := _little_memory():
        reply["remarks"].append(f"{node}: {memory}")


def kernel_log() -> Tuple[Optional[str], str]:
    """The log of the kernel, or None and why it cannot be read."""
    reason = "neither dmesg nor journalctl is there"
    for command in KERNEL_LOGS:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KERNEL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = f"{command[0]}: {error.strerror}" if isinstance(error, OSError) else f"{command[0]} hangs"
            continue
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode == 0 and _SINCE_BOOT.search(text):
            return text, ""
        error_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = error_lines[-1] if error_lines else f"{command[0]} shows none"
    return None, reason


def lines_between(text: str, begun_s: float, ended_s: float) -> Iterator[str]:
    """The lines of a kernel log that were written between two times since boot, or a little later."""
    is_wanted = False
    for line in text.splitlines(keepends=True):
        stamp = _SINCE_BOOT.match(line)
        is_wanted = begun_s - 1 <= float(stamp.group(1)) <= ended_s + LATE_S if stamp else is_wanted
        if is_wanted:
            yield line


def _little_memory() -> str:
    """The report that the node has hardly any memory left; empty if it has."""
    with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
        values = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", file.read(), re.MULTILINE))
    total, available = (int(values.get(name, 0)) for name in ("MemTotal", "MemAvailable"))
    if not total or available > LITTLE_MEMORY * total:
        return ""
    return f"the node has little memory left ({three_digits(available / 1e6)} of {three_digits(total / 1e6)} GB)"
