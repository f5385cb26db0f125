"""
The watch of the batch host by the other nodes of a Slurm job with spare nodes.

Slurm keeps such a job when a node fails (--no-kill), also when that is the node of the batch script, without which no attempt follows: the
other nodes would be idle until the time limit. A step of the job runs `watch` on every node: on the batch host it renews a file, on the
others it requeues the job once that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from orchestrator.node.batch.requeue import cancel, output_of, requeue
from orchestrator.node.batch.restart import attempts_of, reason_against_requeue
from orchestrator.node.number_text import node_names
from orchestrator.node.run.events import Clock, EventLog, Kind
from orchestrator.node.run.job import load_job
from orchestrator.node.run.run_folder import attempt_folder, newest_attempt

HEARTBEAT = "heartbeat"  # in the run's folder, made and removed by the batch script
POLL_S, SHORT_POLL_S = 5.0, 0.2
SILENT_POLLS = 12  # polls, because a job that was suspended has seen none meanwhile
DOWN_POLLS = 2  # of a host that Slurm takes for down as well; one heartbeat may be late
PAUSE_S, MOST_PAUSES = 1.0, 10  # between the nodes, so that the first one that can requeue the job does it alone
ANSWER_S = 10.0


def watch(path: str, batch_host: str) -> int:
    """
    Watch until the batch script ends; if the batch host is lost, requeue the job, or end it. Return the exit code.
    `path`: job.json of the attempt with which the batch script has begun.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    run_dir = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    heartbeat, node = os.path.join(run_dir, HEARTBEAT), os.environ["SLURMD_NODENAME"]
    if node == batch_host:
        return keep(heartbeat)
    peers = [name for name in node_names(os.environ["SLURM_JOB_NODELIST"]) if name != batch_host]
    pause_s = PAUSE_S * min(peers.index(node), MOST_PAUSES)
    return requeue_or_cancel(run_dir, heartbeat, batch_host) if is_lost(heartbeat, batch_host, pause_s) else 0


def keep(heartbeat: str) -> int:
    """Renew the file until the batch script removes it, or Slurm ends this step."""
    while True:
        try:
            os.utime(heartbeat)
        except FileNotFoundError:
            return 0
        if signal.sigtimedwait({signal.SIGTERM}, POLL_S) is not None:
            return 0


def is_lost(heartbeat: str, batch_host: str, pause_s: float) -> bool:
    """Wait until the batch script ends, or its host is lost and no other node has requeued the job in pause_s; return if it is lost."""
    silent_polls, latest_ns, is_ended = 0, heartbeat_ns(heartbeat), False
    while silent_polls < SILENT_POLLS and not is_ended:
        is_ended = signal.sigtimedwait({signal.SIGTERM}, POLL_S) is not None
        before_ns, latest_ns = latest_ns, heartbeat_ns(heartbeat)
        if latest_ns is None:
            return False
        silent_polls = silent_polls + 1 if latest_ns == before_ns else 0
        if silent_polls >= DOWN_POLLS and is_down(batch_host):
            break
    deadline_s = time.monotonic() + pause_s
    while heartbeat_ns(heartbeat) is not None:
        if time.monotonic() >= deadline_s:  # Slurm ends a job whose batch script was on a node that it takes for down
            return is_down(batch_host) if is_ended else True
        time.sleep(SHORT_POLL_S)
    return False


def heartbeat_ns(heartbeat: str) -> int | None:
    """The time of the last heartbeat; None once the batch script has ended."""
    try:
        with open(heartbeat, "rb") as file:  # NFS has the newest time for who opens a file
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError:  # the storage is away: nothing is known
        return time.time_ns()


def is_down(node: str) -> bool:
    """Return whether Slurm takes a node for down; False if sinfo cannot be run here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SINFO_")}
    shown = output_of(["sinfo", "--noheader", f"--nodes={node}", "--format=%T"], ANSWER_S, environment)
    return shown.startswith(("down", "fail"))


def requeue_or_cancel(run_dir: str, heartbeat: str, batch_host: str) -> int:
    """Requeue the job, or end it if there is a reason against another attempt; record that as an event of the batch host."""
    folder = attempt_folder(run_dir, newest_attempt(run_dir) or 1)
    job = load_job(os.path.join(folder, "job.json"), batch_host, 0)
    attempts = attempts_of(job)
    os.makedirs(os.path.join(folder, batch_host), mode=0o700, exist_ok=True)
    events = EventLog(os.path.join(folder, batch_host), Clock())
    lost = f"{batch_host}, the node of the batch script, is lost"
    is_done = attempts[-1].is_done(len(job.ranks))
    reason = "" if is_done else reason_against_requeue(job, attempts, at_limit=False) or requeue(os.environ)
    if not is_done and not reason:
        os.unlink(heartbeat)  # the other nodes have nothing to do
        events.write(Kind.REQUEUED, f"{lost}: the job is requeued, for attempt {job.attempt + 1}")
        return 0
    if is_done:
        events.write_message(f"{lost}, and the ranks have finished: the job is ended")
    else:
        events.write_failure(f"{lost}, and the job is ended: {reason}")
    refusal = cancel(os.environ)
    if refusal:
        print(f"orch: {refusal}", file=sys.stderr)
        events.write_message(refusal)
        return 1
    os.unlink(heartbeat)
    return 0
