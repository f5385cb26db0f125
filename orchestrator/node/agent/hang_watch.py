"""
Report that the ranks of this node have stopped making progress, with the position of each rank, and that they continue.

The ranks are not ended: their collectives time out, or they continue. The supervisor compares the reports of all nodes. No hang shows in
the time for which the ranks, or the agent itself, could not run because other processes had the CPUs.
"""

from __future__ import annotations

import os
import time

from orchestrator.node.agent.phase_limits import DONE, STEP, PhaseLimits
from orchestrator.node.ranks.rank_channel import query, rank_bodies
from orchestrator.node.ranks.stacks import STACKS, folded_calls, ranks_text
from orchestrator.node.run.run_folder import HANG_REPORT, progress_file, started_ranks
from orchestrator.node.system.fast_stdlib import suppress
from orchestrator.node.system.files import read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Mapping, Optional, Tuple

    from orchestrator.node.agent.nccl_ras import RasQuery
    from orchestrator.node.run.agent_files import HangBody, RankBody
    from orchestrator.node.run.events import EventLog
    from orchestrator.node.run.job import Job

POLL_S = 1.0
COUNTS_S = 0.3  # a rank that is stopped never answers
LEAST_SHARE = 1 / 6  # of the time without progress that counts, however long the ranks wait for a CPU
# The most of that time that does not count: a hang must be named well before its timeout, also on a crowded node.
MOST_WAITED_S = 60.0
STARVED_SHARE = 0.5  # of that time; such a rank is reported as waiting for a CPU
NS = 1e-9
LATE_S = 2.0  # between two samples of the waits, which are taken once a second
QUERIES = 40  # at most within a limit: the requests to a stopped rank stay in the queue of the socket


class CpuWaits:
    """The waits since the last reset, from samples of the ranks' main threads."""

    def __init__(self, now_s: float, proc: str = "/proc") -> None:
        self._proc = proc
        self._sampled_s = now_s
        self._delays_s: Dict[int, float] = {}  # of each rank, since its start
        self._waited_s: Dict[int, float] = {}  # of each rank, since the reset
        self.total_s = 0.0
        """The time in which no hang shows: in each interval, the longest wait of a rank, or the time for which the agent did not run."""

    def sample(self, pids: Mapping[int, int], now_s: float) -> None:
        """Add the waits of the ranks since the last sample; `pids` by rank."""
        interval_s = now_s - self._sampled_s
        self._sampled_s = now_s
        longest_s = 0.0
        for rank, pid in pids.items():
            delay_s = run_delay_s(pid, self._proc)
            if delay_s is None:
                continue
            waited_s = min(max(delay_s - self._delays_s.get(rank, delay_s), 0.0), interval_s)
            self._delays_s[rank] = delay_s
            self._waited_s[rank] = self._waited_s.get(rank, 0.0) + waited_s
            longest_s = max(longest_s, waited_s)
        self.total_s += max(longest_s, interval_s - LATE_S)

    def reset(self) -> None:
        """Begin again: the ranks have made progress."""
        self._waited_s.clear()
        self.total_s = 0.0

    def of_rank(self, rank: int) -> float:
        """The seconds for which this rank has waited since the reset."""
        return self._waited_s.get(rank, 0.0)


def run_delay_s(pid: int, proc: str = "/proc") -> Optional[float]:
    """The time for which the main thread was runnable without a CPU; None if it has ended, or the kernel does not count it."""
    try:
        with open(os.path.join(proc, str(pid), "schedstat"), encoding="ascii") as file:
            return int(file.read().split()[1]) * NS
    except (OSError, ValueError, IndexError):
        return None


class HangWatch:
    """Reads the progress files once a second, and asks the ranks once half of the limit has passed."""

    def __init__(self, job: Job, folder: str, events: EventLog, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._job, self._folder, self._events, self._clock_s = job, folder, events, clock_s
        self._limits = PhaseLimits(clock_s())
        self._waits = CpuWaits(clock_s())
        self._pids: Dict[int, int] = {}
        self._due_s = clock_s() + POLL_S
        self._counts: Dict[int, Optional[object]] = {}  # of the collectives of each rank, at half of the limit
        self._query_s = 0.0
        self._is_reported = False
        self._body: Optional[HangBody] = None
        self._ras: Optional[RasQuery] = None
        self._ras_is_queried = False

    def poll(self) -> None:
        """Look at the progress, if it is time, and for the answer of NCCL's RAS."""
        self._poll_ras()
        now_s = self._clock_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + POLL_S
        quiet_s, limit_s = self._limits.quiet_s(now_s), self._limits.limit_s()
        progress = self._progress()
        unknown = [rank for rank in progress if rank not in self._pids]
        if unknown:
            self._pids.update({rank: pid for rank, (pid, _) in query(self._folder, unknown, [], 0.0).items()})
        self._waits.sample(self._pids, now_s)
        waited_s = self._waits.total_s
        counted_s = max(quiet_s - min(waited_s, MOST_WAITED_S), quiet_s * LEAST_SHARE)
        if self._limits.add(progress, now_s, waited_s):
            self._waits.reset()
            self._counts = {}
            self._query_s = 0.0
            if self._is_reported:
                self._is_reported = False
                with suppress(OSError):  # the disk was full
                    os.unlink(os.path.join(self._folder, HANG_REPORT))
                self._events.write_message(
                    f"the ranks of {self._job.node} make progress again, after {quiet_s:.0f} s without"
                )
        elif not self._is_reported and counted_s >= limit_s / 2 and now_s >= self._query_s:
            self._query_s = now_s + max(POLL_S, limit_s / QUERIES)
            counts = self._collectives()
            # a rank has answered twice, with different counts; one that did not answer proves nothing
            if any(count is not None and self._counts.get(rank) not in (None, count) for rank, count in counts.items()):
                self._limits.restart(now_s, waited_s)
                self._waits.reset()
                self._counts = {}
            elif counted_s < limit_s:
                self._counts = counts
            else:
                self._report(quiet_s)

    def _progress(self) -> Dict[int, Tuple[int, str]]:
        """The step and the phase of each rank that reports its progress; a script may report the step only."""
        found = {}
        for rank in started_ranks(self._folder, self._job.rank_numbers):
            report = read_json(progress_file(self._folder, rank)) or {}
            has_ended = "source" in report and report.get("phase") == DONE  # of a script that may end before the others
            if isinstance(report.get("step"), int) and not has_ended:
                found[rank] = (report["step"], str(report.get("phase", STEP)))
        return found

    def _collectives(self) -> Dict[int, Optional[object]]:
        """The counts of collectives of each rank; None for one that does not answer."""
        ranks = started_ranks(self._folder, self._job.rank_numbers)
        answers = query(self._folder, ranks, ["counts"], COUNTS_S)
        return {rank: answer and answer.get("counts") for rank, (_, answer) in answers.items()}

    def _report(self, quiet_s: float) -> None:
        self._is_reported = True
        ranks = rank_bodies(self._folder, started_ranks(self._folder, self._job.rank_numbers))
        step_s = self._limits.step_s()
        for rank, found in ranks.items():
            if self._waits.of_rank(rank) > STARVED_SHARE * quiet_s:
                found["cpu_wait_s"] = self._waits.of_rank(rank)
        self._body = {"time": self._events.clock.now() - quiet_s, "step_s": step_s, "ranks": without_stacks(ranks)}
        with suppress(OSError):  # a full disk must not end the run
            write_json(os.path.join(self._folder, HANG_REPORT), self._body)
            for rank, found in ranks.items():
                path = os.path.join(self._folder, STACKS, f"{rank}.no-progress.txt")
                with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(found["stacks"])
        step = f", while a step takes {step_s:.1f} s" if step_s else ""
        calls = folded_calls({rank: found["call"] for rank, found in ranks.items() if found["call"]})
        silent = [rank for rank, found in ranks.items() if not found["answers"]]
        no_answer = f"{ranks_text(silent)} {'does' if len(silent) == 1 else 'do'} not answer" if silent else ""
        positions = "; ".join(filter(None, (calls, no_answer)))
        have = (
            f"rank {min(ranks)} of {self._job.node} has" if len(ranks) == 1 else f"the ranks of {self._job.node} have"
        )
        text = f"{have} made no progress for {quiet_s:.0f} s{step}"
        self._events.write_message(f"warning: {text}{': ' if positions else ''}{positions}")
        self._query_ras(ranks)

    def _query_ras(self, ranks: Dict[int, RankBody]) -> None:
        """Query NCCL's RAS once in an attempt, on the node of rank 0, while the ranks are in steps."""
        in_steps = self._limits.step_s() and all(body["phase"] == STEP for body in ranks.values() if body["answers"])
        if self._ras_is_queried or 0 not in ranks or not in_steps:
            return
        from orchestrator.node.agent.nccl_ras import RasQuery, may_be_queried  # seldom needed

        answers = query(self._folder, ranks, ["nccl"], COUNTS_S).values()
        nccl = next((answer["nccl"] for _, answer in answers if answer and answer.get("nccl")), None)
        if nccl and may_be_queried(nccl, ranks):
            self._ras_is_queried = True
            pids = {body["pid"] for body in ranks.values()}
            self._ras = RasQuery(nccl, pids, sum(self._job.ranks), self._clock_s)

    def _poll_ras(self) -> None:
        """Add the answer of NCCL's RAS to the report."""
        answer = self._ras and self._ras.poll()
        if not answer:
            return
        self._ras = None
        self._events.write_message(f"NCCL's RAS: {'; '.join(answer['facts']) or answer['problem']}")
        if self._body is not None and self._is_reported:
            self._body["ras"] = answer
            with suppress(OSError):  # a full disk must not end the run
                write_json(os.path.join(self._folder, HANG_REPORT), self._body)


def without_stacks(ranks: Dict[int, RankBody]) -> Dict[int, RankBody]:
    """The same without the stacks, which are in files of their own: a report is sent again and again."""
    found = {}
    for rank, body in ranks.items():
        found[rank] = body.copy()
        found[rank]["stacks"] = ""
    return found
