"""What comes after an attempt of a Slurm job: nothing, or another one, for which Slurm requeues the job. Asked by the batch script."""

from __future__ import annotations

import os
import signal
import sys
import time

from orchestrator.node.job import NO_RETRY, REQUEUE, agent_failed, load_job
from orchestrator.node.records import Clock, Journal
from orchestrator.node.requeue import requeue
from orchestrator.node.watch import node_folders, read_events, read_json

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every batch script some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from orchestrator.node.job import Job

BARREN = 3  # so many attempts in a row without progress are enough
LATE_S = 2.0  # for Slurm's word that the job is over, after the ranks have heard a SIGTERM; and for their last words
SAVING_S = 20.0  # what was being saved at the time limit may still become progress; Slurm kills after 30 s (KillWait)
POLL_S = 0.2
EARLY_S = 5.0  # Slurm's clock is not this one's


class Ending:
    """How an attempt came to its end, by what its agents wrote."""

    def __init__(self, folder: str) -> None:
        self.ends: list[str] = []  # the agents' last words, for those that had one
        self.failed_s: list[float] = []
        self.asked_s: list[float] = []  # when ranks left that want another attempt
        self.warned_s: float | None = None
        self.told_to_stop = self.no_retry = False
        self.saved: int | None = None
        for _, path in node_folders({"attempt_dir": folder, "nodes": None}):
            last = None
            for event in read_events(path):
                last = event if event["event"] in ("agent-started", "agent-finished") else last
                self.take_in(event)
            if last is not None and last["event"] == "agent-finished":
                self.ends.append(last["state"])
                if last["state"] == "FAILED":
                    self.failed_s.append((last["exit"] or last)["time"])
            self.take_in_progress(os.path.join(path, "progress"))

    def take_in(self, event: dict[str, Any]) -> None:
        if event["event"] == "warned":
            self.warned_s = event["time"]
        elif event["event"] == "stopping" and not self.asked_s:
            self.told_to_stop = True
        elif event["event"] == "rank-exited" and not event["done"]:
            self.no_retry |= event["code"] == NO_RETRY
            if event["code"] == REQUEUE:
                self.asked_s.append(event["time"])

    def take_in_progress(self, folder: str) -> None:
        """The newest step that is saved; of programs that do not tell about saving, the newest step."""
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            found = read_json(os.path.join(folder, name)) or {}
            step = found.get("saved", found.get("step"))
            if name.endswith(".json") and isinstance(step, int):
                self.saved = max(step, self.saved or 0)

    def is_done(self, nodes: int) -> bool:
        return len(self.ends) == nodes and set(self.ends) == {"DONE"}

    def asks_for_more(self) -> bool:
        """Whether a rank asked for another attempt before any had failed: what fails after that is a consequence."""
        return bool(self.asked_s) and not self.no_retry and min(self.asked_s) <= min(self.failed_s, default=time.time())

    def reached_time_limit(self, warn_s: int) -> bool:
        """Whether a job that Slurm has ended was at its time limit, and not cancelled: after a warning in due time."""
        return self.warned_s is not None and time.time() >= self.warned_s + warn_s - EARLY_S


def barren(endings: Sequence[Ending]) -> int:
    """How many of the last attempts, in order, made no progress: saved nothing new, or say nothing and were not even warned."""
    best, count = 0, 0
    for ending in endings:
        progress = ending.warned_s is not None if ending.saved is None else ending.saved > best
        count = 0 if progress else count + 1
        best = max(best, ending.saved or 0)
    return count


def objection(job: Job, endings: Sequence[Ending], *, at_limit: bool) -> str:
    """Why there is to be no other attempt; empty when nothing speaks against it."""
    assert job.slurm is not None, "a job of Slurm"
    saved = max((ending.saved or 0 for ending in endings), default=0)
    newest = f"the newest saved step is {saved}" if saved else "nothing was saved"
    if job.slurm["requeue"] == "never":
        return "the job does not begin anew: slurm.requeue is never"
    if at_limit and (endings[-1].saved is None or barren(endings)):
        return f"the time limit came before progress was saved, so the job does not begin anew: {newest}"
    if barren(endings) >= BARREN:
        return f"{BARREN} attempts in a row made no progress, so the job does not begin anew: {newest}"
    if job.attempt > job.slurm["max_retries"]:
        return f"attempt {job.attempt} was the last: slurm.max_retries is {job.slurm['max_retries']}; {newest}"
    return ""


def next_attempt(path: str, status: str, ended: str) -> int:
    """
    Have Slurm requeue the job if another attempt is wanted and allowed; the exit code of the batch script.

    Args:
        path: job.json of the attempt that has ended.
        status: srun's exit code.
        ended: 1 when Slurm has told the batch script that the job is over, else 0.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it comes with a requeue too, which must not be cut off
    node = os.environ["SLURMD_NODENAME"]
    job = load_job(path, node, 0)
    assert job.slurm is not None, "a job of Slurm"
    folders = [os.path.join(job.run_dir, f"attempt-{number}") for number in range(1, job.attempt + 1)]
    endings = [Ending(folder) for folder in folders]
    last = endings[-1]
    if last.is_done(len(job.ranks)):
        return 0
    is_over = ended == "1" or (last.told_to_stop and signal.sigtimedwait({signal.SIGTERM}, LATE_S) is not None)
    at_limit = is_over and last.reached_time_limit(job.slurm["warn_s"])
    if not at_limit and (is_over or not last.asks_for_more()):  # who cancels a job does not want another attempt
        return int(status)
    deadline = time.monotonic() + (SAVING_S if barren(endings) else LATE_S)
    while at_limit and len(endings[-1].ends) < len(job.ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        endings[-1] = Ending(folders[-1])
    if endings[-1].is_done(len(job.ranks)):
        return 0
    reason = objection(job, endings, at_limit=at_limit)
    reason = reason or requeue(os.environ)
    events = Journal(os.path.join(folders[-1], node, "events.jsonl"), Clock())
    if not reason:
        events.add(event="requeued", text=f"the job is in the queue again, for attempt {job.attempt + 1}")
        return 0
    print(f"orch: {reason}", file=sys.stderr)
    events.add(**agent_failed(reason))
    return int(status) or 1
