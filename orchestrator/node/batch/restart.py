"""After an attempt of a Slurm job: decide to stop, to restart in this allocation or to requeue; prepare the next attempt."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

from orchestrator.node.batch.allocation import usable_nodes
from orchestrator.node.batch.history import Attempt, wait_for_ends
from orchestrator.node.batch.requeue import is_preempted, requeue
from orchestrator.node.ranks.one_training import proof_in_attempt
from orchestrator.node.run.events import NO_RETRY, Clock, EventLog, Kind
from orchestrator.node.run.fence import close_fences
from orchestrator.node.run.job import load_job
from orchestrator.node.run.retry import (
    attempts_without_progress,
    choose_nodes,
    newest_saved,
    reason_against_restart,
    reason_without_progress,
    retry_may_help,
)
from orchestrator.node.run.run_folder import ATTEMPT_BEGINS, attempt_folder, newest_attempt
from orchestrator.node.system.files import write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.node.run.job import Job

LATE_S = 2.0  # the wait for Slurm's SIGTERM, which may arrive after the ranks' SIGTERM, and for the agents' last events
SAVING_S = 20.0  # the wait for a save that runs at the time limit; Slurm kills after 30 s (KillWait)


def next_attempt(path: str, status: str, ended: str) -> int:
    """
    Start another attempt if it may help and is allowed; return the exit code of the batch script.

    For a restart in this allocation, prepare the attempt and print its folder; otherwise Slurm requeues the job.

    Args:
        path: job.json of the attempt that has ended.
        status: srun's exit code.
        ended: 1 if Slurm has signalled the batch script that the job is over, else 0.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a requeue sends it too, and must not be interrupted
    batch_host = os.environ["SLURMD_NODENAME"]
    job = load_job(path, batch_host, 0)
    assert job.slurm is not None, "a job of Slurm"
    # Slurm has lost this node, and started the job elsewhere
    is_superseded = (newest_attempt(job.run_dir) or 0) > job.attempt
    # without a shared folder, the files of the other nodes' agents cannot be read from this node
    if is_superseded or not job.slurm.get("shared", True):
        return int(status)
    attempts = attempts_of(job)
    last, folder = attempts[-1], os.path.dirname(path)
    if last.is_done(len(job.ranks)):
        return done_code(job, folder)
    may_be_cancelled = last.stopped_first or not last.failures
    is_over = ended == "1" or (may_be_cancelled and signal.sigtimedwait({signal.SIGTERM}, LATE_S) is not None)
    at_limit = is_over and last.reached_time_limit(job.slurm["warn_s"], batch_host)
    is_taken = not at_limit and is_preempted(os.environ)  # a restart in these nodes would end with them
    # the job was cancelled, or its ranks were asked to save before its end: no other attempt is wanted
    if last.is_save_requested or (is_over and not at_limit and not is_taken):
        return int(status)
    patience_s = SAVING_S if at_limit and attempts_without_progress(attempts) else LATE_S
    last = attempts[-1] = wait_for_ends(folder, len(job.ranks), patience_s)
    if last.is_done(len(job.ranks)):
        return done_code(job, folder)
    if at_limit or is_taken or last.restart_requested:
        return restart_from_queue(job, folder, attempts, int(status), at_limit=at_limit, is_taken=is_taken)
    return restart(job, folder, attempts, int(status))


def done_code(job: Job, folder: str) -> int:
    """0, or NO_RETRY if the ranks have trained separately: a job that waits for the success of this one must not start."""
    reason = proof_in_attempt(job, folder)
    if reason:
        print(f"orch: {reason}", file=sys.stderr)
    return NO_RETRY if reason else 0


def attempts_of(job: Job) -> list[Attempt]:
    """All attempts up to the job's current one."""
    return [Attempt(attempt_folder(job.run_dir, number)) for number in range(1, job.attempt + 1)]


def nodes_for(path: str) -> list[str]:
    """The nodes on which the attempt of that job.json is to run."""
    job = load_job(path, os.environ["SLURMD_NODENAME"], 0)
    assert job.slurm is not None, "a job of Slurm"
    return choose_nodes(usable_nodes(job.run_dir, os.environ), len(job.ranks), attempts_of(job), job.slurm["spares"])


def restart(job: Job, folder: str, attempts: Sequence[Attempt], status: int) -> int:
    """Prepare the next attempt in this allocation if it may help; requeue if it has too few usable nodes or too little time left."""
    assert job.slurm is not None, "a job of Slurm"
    events, at_any_step = node_events(folder), restarts_at_any_step(job)
    if not retry_may_help(attempts, at_any_step=at_any_step):
        if at_any_step and not attempts[-1].no_retry:  # the user has requested restarts
            events.write_message(f"not restarted: {reason_without_progress(attempts, at_any_step=True)}")
        return status
    names = choose_nodes(usable_nodes(job.run_dir, os.environ), len(job.ranks), attempts, job.slurm["spares"])
    last = attempts[-1]
    if len(names) < len(job.ranks) or last.was_warned or not last.started:
        return restart_from_queue(job, folder, attempts, status)
    reason = reason_against_restart(attempts, job.slurm["max_retries"], at_any_step=at_any_step)
    if reason:
        print(f"orch: {reason}", file=sys.stderr)
        events.write_message(reason)
        return status or 1
    left_out = ", ".join(sorted(last.started - set(names)))
    text = f"the job restarts in the same allocation, as attempt {job.attempt + 1}"
    events.write(Kind.RESTARTING, text + (f", without {left_out}" if left_out else ""))
    print(begin_attempt(os.path.join(attempt_folder(job.run_dir, 1), "job.json")))
    return 0


def restart_from_queue(
    job: Job, folder: str, attempts: Sequence[Attempt], status: int, *, at_limit: bool = False, is_taken: bool = False
) -> int:
    """Requeue the job, unless there is a reason against it; return the exit code of the batch script."""
    if not (at_limit or is_taken) and signal.SIGTERM in signal.sigpending():  # the job has been cancelled
        return status
    reason = reason_against_requeue(job, attempts, at_limit=at_limit) or requeue(os.environ)
    events = node_events(folder)
    if not reason:
        events.write(Kind.REQUEUED, f"the job is requeued, for attempt {job.attempt + 1}")
        return 0
    print(f"orch: {reason}", file=sys.stderr)
    if attempts[-1].first_failed_node:
        events.write_message(reason)
    else:
        events.write_failure(reason)
    return status or 1


def reason_against_requeue(job: Job, attempts: Sequence[Attempt], *, at_limit: bool) -> str:
    """The reason not to requeue the job; empty if there is none."""
    assert job.slurm is not None, "a job of Slurm"
    if job.slurm["requeue"] == "never":
        return "the run is not restarted: slurm.requeue is never"
    if at_limit and (attempts[-1].saved is None or attempts_without_progress(attempts)):
        return f"the time limit came before progress was saved, so the run is not restarted: {newest_saved(attempts)}"
    return reason_against_restart(attempts, job.slurm["max_retries"], at_any_step=restarts_at_any_step(job))


def restarts_at_any_step(job: Job) -> bool:
    """True if the user has requested restarts of this run: then no step has to be saved."""
    return job.slurm is not None and bool(job.slurm.get("at_any_step"))


def node_events(folder: str) -> EventLog:
    """The event log of this node in an attempt, which may not have run on this node."""
    node_folder = os.path.join(folder, os.environ["SLURMD_NODENAME"])
    os.makedirs(node_folder, mode=0o700, exist_ok=True)
    return EventLog(node_folder, Clock())


def begin_attempt(path: str) -> str:
    """
    Make the folder of the job's next attempt, atomically, with its job.json and the first attempt's node.sh; return its path.

    Ranks of earlier attempts, which nodes that are cut off from Slurm may still have, are ended first.
    """
    first = os.path.dirname(os.path.abspath(path))
    run_dir = os.path.dirname(first)
    number = 1 + (newest_attempt(run_dir) or 0)
    folder = attempt_folder(run_dir, number)
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    unfinished = f"{folder}.{os.getpid()}"
    os.mkdir(unfinished)
    job["slurm"]["requeues"] = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    write_json(os.path.join(unfinished, "job.json"), {**job, "attempt": number})
    shutil.copy(os.path.join(first, "node.sh"), unfinished)
    os.rename(unfinished, folder)
    print(ATTEMPT_BEGINS.format(number), file=sys.stderr, flush=True)
    left = close_fences(run_dir, number)
    if left:
        names = ", ".join(sorted(left))
        sys.exit(f"orch: ranks of an earlier attempt still run on {names}, and could write the same checkpoints")
    return folder
