"""Search the logs of a run on this node, and the kernel log, for known texts. Only hits travel."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time

from orchestrator.node.endpoint.report import READ_FIRST, clock_ahead_s, streams
from orchestrator.node.number_text import three_digits
from orchestrator.node.protocol.operations import SEARCH, answers
from orchestrator.node.run.events import read_history
from orchestrator.node.run.oom_kills import kills_of_run, oom_kills
from orchestrator.node.run.run_folder import node_folders, read_agent
from orchestrator.node.search import BLOCK_BYTES, KERNEL_LOG, Search, Texts
from orchestrator.node.system.files import full_disk, read_at
from orchestrator.node.system.machine import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Optional, Tuple

    from orchestrator.node.protocol.output import LogBody, SearchReply, SearchRequest
    from orchestrator.node.run.agent_files import AgentBody
    from orchestrator.node.run.events import NodeHistory

EXITS = "first exit"  # the name of a text in replies
MOST_HITS = 3  # of each pattern in one part of a file
END_BYTES = 1 << 24  # of a larger file, searched before everything else: the failure is there
ENDS_BYTES = 1 << 29  # of all files together
LEAST_END_BYTES = 1 << 18
KERNEL_S = 2.0
LATE_S = 5.0  # messages of the kernel from after the end of a run may be about it
KERNEL_LOGS = (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic", "-n", "20000"))
_SINCE_BOOT = re.compile(r"^\[ *(\d+\.\d+)\]", re.MULTILINE)
_KILLED_PID = re.compile(r"Kill(?:ed)? process (\d+)")
LITTLE_MEMORY = 0.03  # of all


@answers(SEARCH)
def search(request: SearchRequest, _payload: bytes) -> Tuple[SearchReply, bytes]:
    """Search the output of all ranks, until wait_s have passed: the ends of all files, then the files from their starts."""
    deadline = time.monotonic() + request["wait_s"]
    folders = list(node_folders(request))
    files = [
        (node, os.path.join(folder, name), size)
        for node, folder in folders
        for name, size in sorted(streams(folder))
        if name not in READ_FIRST
    ]
    end_bytes = min(END_BYTES, max(LEAST_END_BYTES, ENDS_BYTES // max(1, len(files))), request["max_bytes"] // 2)
    texts = Texts(request["patterns"])
    outputs = [Output(file, texts, end_bytes, max_bytes=request["max_bytes"], deadline=deadline) for file in files]
    for output in outputs:
        output.search_start()
    reply: SearchReply = {
        "logs": [body for output in outputs for body in output.bodies()],
        "remarks": [remark for output in outputs for remark in output.remarks()],
        "is_partial": not all(output.is_complete for output in outputs),
    }
    for node, folder in folders:
        if text := exits(folder, node):
            reply["logs"].append(_log(searched(texts, text), node, EXITS, 0))
        agent = read_agent(folder)
        if agent is not None and agent.get("boot_id") == boot_id():
            _search_machine(request, node, folder, agent=agent, reply=reply)
    return reply, b""


class Output:
    """The search of one output file: its end, and then the file from its start to there."""

    def __init__(
        self, file: Tuple[str, str, int], texts: Texts, end_bytes: int, *, max_bytes: int, deadline: float
    ) -> None:
        """Search the last `end_bytes` of a file, given by node, path and size."""
        self._texts, self._max_bytes, self._deadline = texts, max_bytes, deadline
        self._node, self._path, self._size = file
        self._start: Optional[LogBody] = None
        self._end = self._part(line_start(self._path, self._size - end_bytes), self._size)

    def search_start(self) -> None:
        """Search what is before the end, as much as is requested."""
        size = min(self._end["skipped"], self._max_bytes - self._max_bytes // 2)
        if size and time.monotonic() < self._deadline:
            self._start = self._part(0, size)

    @property
    def is_complete(self) -> bool:
        return self._end["bytes"] + (self._start["bytes"] if self._start else 0) == self._size

    def bodies(self) -> List[LogBody]:
        """The searched parts; they are joined if they are the whole file."""
        if self._start is None:
            return [self._end] if self._end["bytes"] or not self._size else []
        return [joined(self._start, self._end)] if self.is_complete else [self._start, self._end]

    def remarks(self) -> List[str]:
        """A sentence about what was not searched; none if everything was."""
        if self.is_complete:
            return []
        name = os.path.basename(self._path)
        how = f"only parts of {name} were searched" if self.bodies() else f"{name} was not searched"
        why = "the time was over" if time.monotonic() >= self._deadline else "it is too large"
        return [f"{self._node}: {how}: {why}"]

    def _part(self, begin: int, end: int) -> LogBody:
        found = Search(self._texts, MOST_HITS)
        with open(self._path, "rb") as file:
            file.seek(begin)
            while found.bytes < end - begin and time.monotonic() < self._deadline:
                block = file.read(min(BLOCK_BYTES, end - begin - found.bytes))
                if not block:
                    break
                found.feed(block)
        found.close()
        return _log(found, self._node, os.path.basename(self._path), begin)


def searched(texts: Texts, text: str) -> Search:
    found = Search(texts, MOST_HITS)
    found.feed(text.encode("utf-8", "replace"))
    found.close()
    return found


def exits(folder: str, node: str) -> str:
    """The ranks of the node that were done, and how the first one failed, before the agent ended the others; empty if none was."""
    history = read_history(folder)
    done = ", ".join(map(str, sorted(rank for rank in history.done if rank is not None)))
    lines = [f"rank {done} on {node} had exited 0 before the failure"] if done else []
    first = history.first_failure
    if (
        first is not None
        and first.get("rank") is not None
        and all(stop_s >= first["time"] for stop_s in history.stops_s)
    ):
        how = f"was killed by {first['signal']}" if first.get("signal") else f"exited {first.get('code')}"
        lines.append(f"rank {first['rank']} on {node} {how}")
    return "\n".join(lines)


def line_start(path: str, offset: int) -> int:
    """The offset of the first line that begins at `offset` or later; the offset itself if that line is too far away."""
    if offset <= 0:
        return 0
    newline = read_at(path, offset - 1, BLOCK_BYTES).find(b"\n")
    return offset + max(0, newline)


def joined(start: LogBody, end: LogBody) -> LogBody:
    """The search of a file whose parts were searched one by one."""
    before = start["lines"]
    counts = {
        name: start["counts"].get(name, 0) + end["counts"].get(name, 0) for name in {**start["counts"], **end["counts"]}
    }
    return {
        **start,
        "bytes": start["bytes"] + end["bytes"],
        "lines": before + end["lines"],
        "hits": start["hits"] + [{**hit, "line": hit["line"] + before} for hit in end["hits"]],
        "counts": counts,
        "progress_line": end["progress_line"] + before if end["progress_line"] else start["progress_line"],
    }


def _log(found: Search, node: str, name: str, skipped: int) -> LogBody:
    return {
        "node": node,
        "name": name,
        "skipped": skipped,
        "bytes": found.bytes,
        "lines": found.lines,
        "hits": found.hits,
        "counts": found.counts,
        "progress_line": found.progress_line,
    }


def period_s(folder: str, agent: AgentBody) -> Tuple[float, float]:
    """The start and the end of an agent of this boot, in seconds since boot; an unknown end is infinite."""
    finished, ahead_s = read_history(folder).finished, clock_ahead_s(agent)
    ended_s = math.inf if finished is None or ahead_s is None else finished["time"] - ahead_s
    return agent["start_time"] / os.sysconf("SC_CLK_TCK"), ended_s


def _search_machine(request: SearchRequest, node: str, folder: str, *, agent: AgentBody, reply: SearchReply) -> None:
    """Search the kernel's log from the start to the end of the agent, and look at disks and memory."""
    text, reason = kernel_log()
    if text is None:
        reply["remarks"].append(f"{node}: the log of the kernel cannot be read: {reason}")
    lines = "".join(lines_between(text or "", *period_s(folder, agent)))
    patterns = [body for body in request["patterns"] if body["id"] in request["kernel"]]
    found = searched(Texts(patterns), f"{lines}{oom_report(agent, read_history(folder), lines)}")
    if text is not None or found.hits:
        reply["logs"].append(_log(found, node, KERNEL_LOG, 0))
    disks = filter(None, map(full_disk, (folder, os.environ.get("TMPDIR", "/tmp"), "/dev/shm")))  # noqa: S108
    reply["remarks"] += [f"{node}: {disk}" for disk in disks]
    if memory := _little_memory():
        reply["remarks"].append(f"{node}: {memory}")


def oom_report(agent: AgentBody, history: NodeHistory, kernel_lines: str) -> str:
    """
    The report that the kernel has killed processes since the agent started; empty if none.

    Those in the run's cgroup are counted by the agent at its end: the cgroup may end with it, as a login's or a step's does. If that
    count is not known, those of the node are. A rank that its program has put into another cgroup is known by its pid.
    """
    before, now, finished = agent.get("oom_kills"), oom_kills(), history.finished
    of_run = kills_of_run(agent) if finished is None or "oom_kills" not in finished else finished["oom_kills"]
    if of_run == 0:
        ranks = {start["pid"] for start in history.rank_starts}
        of_run = len(ranks.intersection(map(int, _KILLED_PID.findall(kernel_lines))))
    if of_run:
        return f"the kernel has killed {of_run} of the processes in the cgroup of this run for lack of memory"
    if before is None or now is None or now <= before:
        return ""
    if of_run == 0:
        return f"the kernel has killed {now - before} processes on this node for lack of memory, and none in the cgroup of this run"
    return f"the kernel has killed {now - before} of the processes on this node for lack of memory since the start of the run"


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
