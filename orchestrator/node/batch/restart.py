"""What comes after an attempt of a Slurm job: nothing, another one on the spot, or another one for which Slurm requeues the job."""

from __future__ import annotations

import json
import os
import signal
import sys

from orchestrator.node.batch.allocation import choose, expand
from orchestrator.node.batch.history import Ending, barren, last_ending
from orchestrator.node.batch.requeue import requeue
from orchestrator.node.events import Clock, Journal, agent_failed
from orchestrator.node.files import write_json
from orchestrator.node.job import load_job

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every batch script some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.node.job import Job

BARREN = 3  # so many attempts in a row without progress are enough
LATE_S = 2.0  # for Slurm's word that the job is over, after the ranks have heard a SIGTERM; and for their last words
SAVING_S = 20.0  # what was being saved at the time limit may still become progress; Slurm kills after 30 s (KillWait)


def next_attempt(path: str, status: str, ended: str) -> int:
    """
    See to another attempt if it is wanted and allowed; the exit code of the batch script, if there is none to be begun here.

    One that goes on in the same allocation is prepared, and its folder printed; for any other one, Slurm requeues the job.

    Args:
        path: job.json of the attempt that has ended.
        status: srun's exit code.
        ended: 1 when Slurm has told the batch script that the job is over, else 0.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it comes with a requeue too, which must not be cut off
    job = load_job(path, os.environ["SLURMD_NODENAME"], 0)
    assert job.slurm is not None, "a job of Slurm"
    if not job.slurm.get("shared", True):  # what the other nodes' agents have left is not to be seen here
        return int(status)
    endings = all_endings(job)
    last, folder = endings[-1], os.path.dirname(path)
    if last.is_done(len(job.ranks)):
        return 0
    is_unclear = last.told_to_stop or not last.failures
    is_over = ended == "1" or (is_unclear and signal.sigtimedwait({signal.SIGTERM}, LATE_S) is not None)
    at_limit = is_over and last.reached_time_limit(job.slurm["warn_s"])
    if is_over and not at_limit:  # who cancels a job does not want another attempt
        return int(status)
    last = endings[-1] = last_ending(folder, len(job.ranks), SAVING_S if at_limit and barren(endings) else LATE_S)
    if last.is_done(len(job.ranks)):
        return 0
    if at_limit or last.asks_for_more():
        return go_on_later(job, folder, endings, int(status), at_limit=at_limit)
    return restart(job, folder, endings, int(status)) if is_worth_it(endings) else int(status)


def all_endings(job: Job) -> list[Ending]:
    """Of all attempts up to that of the job."""
    return [Ending(os.path.join(job.run_dir, f"attempt-{number}")) for number in range(1, job.attempt + 1)]


def nodes_for(path: str) -> list[str]:
    """The nodes on which the attempt of that job.json is to run."""
    job = load_job(path, os.environ["SLURMD_NODENAME"], 0)
    assert job.slurm is not None, "a job of Slurm"
    return choose(expand(os.environ["SLURM_JOB_NODELIST"]), len(job.ranks), all_endings(job), job.slurm["spares"])


def is_worth_it(endings: Sequence[Ending]) -> bool:
    """Whether a failed run may come further in another attempt: it has saved something, or its nodes or Slurm were at fault."""
    last = endings[-1]
    is_stillborn = len(endings) > 1 and not last.started  # there is nothing wrong with what has started before
    return not last.no_retry and bool(last.broken or is_stillborn or any(ending.saved for ending in endings))


def restart(job: Job, folder: str, endings: Sequence[Ending], status: int) -> int:
    """Prepare the next attempt in this allocation; where too few nodes of it are left, or little time, for another one."""
    assert job.slurm is not None, "a job of Slurm"
    names = choose(expand(os.environ["SLURM_JOB_NODELIST"]), len(job.ranks), endings, job.slurm["spares"])
    last = endings[-1]
    if len(names) < len(job.ranks) or last.warned_s is not None or not last.started:
        return go_on_later(job, folder, endings, status, at_limit=False)
    reason = objection(job, endings)
    events = journal(folder)
    if reason:
        print(f"orch: {reason}", file=sys.stderr)
        events.add(event="note", text=reason)
        return status or 1
    text = f"the job goes on in the same allocation, as attempt {job.attempt + 1}"
    left_out = sorted(set(last.started) - set(names))
    events.add(event="restarting", text=text + (f", without {', '.join(left_out)}" if left_out else ""))
    print(begin_attempt(os.path.join(job.run_dir, "attempt-1", "job.json")))
    return 0


def go_on_later(job: Job, folder: str, endings: Sequence[Ending], status: int, *, at_limit: bool) -> int:
    """Put the job back into Slurm's queue."""
    if not at_limit and signal.SIGTERM in signal.sigpending():  # cancelled meanwhile
        return status
    reason = objection_to_queueing(job, endings, at_limit=at_limit) or requeue(os.environ)
    events = journal(folder)
    if not reason:
        events.add(event="requeued", text=f"the job is in the queue again, for attempt {job.attempt + 1}")
        return 0
    print(f"orch: {reason}", file=sys.stderr)
    events.add(**({"event": "note", "text": reason} if endings[-1].culprit else agent_failed(reason)))
    return status or 1


def objection_to_queueing(job: Job, endings: Sequence[Ending], *, at_limit: bool) -> str:
    """Why Slurm is not to begin the job anew; empty when nothing speaks against it."""
    assert job.slurm is not None, "a job of Slurm"
    if job.slurm["requeue"] == "never":
        return "the job does not begin anew: slurm.requeue is never"
    if at_limit and (endings[-1].saved is None or barren(endings)):
        return f"the time limit came before progress was saved, so the job does not begin anew: {newest(endings)}"
    return objection(job, endings)


def objection(job: Job, endings: Sequence[Ending]) -> str:
    """Why there is to be no other attempt, wherever; empty when nothing speaks against it."""
    assert job.slurm is not None, "a job of Slurm"
    if barren(endings) >= BARREN:
        return f"{BARREN} attempts in a row made no progress, so the job does not begin anew: {newest(endings)}"
    if job.attempt > job.slurm["max_retries"]:
        return f"attempt {job.attempt} was the last: slurm.max_retries is {job.slurm['max_retries']}; {newest(endings)}"
    return ""


def newest(endings: Sequence[Ending]) -> str:
    saved = max((ending.saved or 0 for ending in endings), default=0)
    return f"the newest saved step is {saved}" if saved else "nothing was saved"


def journal(folder: str) -> Journal:
    """The events of this node in that attempt, in which it may not have had a part."""
    own = os.path.join(folder, os.environ["SLURMD_NODENAME"])
    os.makedirs(own, mode=0o700, exist_ok=True)
    return Journal(os.path.join(own, "events.jsonl"), Clock())


def begin_attempt(path: str) -> str:
    """Make the folder of the next attempt of the job, in one step: job.json with its number, and the first one's node.sh."""
    import shutil  # noqa: PLC0415  milliseconds that a rendezvous need not wait for

    from orchestrator.node.run_folder import ATTEMPT, newest_attempt  # noqa: PLC0415  as above

    first = os.path.dirname(os.path.abspath(path))
    run_dir = os.path.dirname(first)
    number = 1 + (newest_attempt(run_dir) or 0)
    folder = os.path.join(run_dir, f"{ATTEMPT}{number}")
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    beginning = f"{folder}.{os.getpid()}"
    os.mkdir(beginning)
    job["slurm"]["requeues"] = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    write_json(os.path.join(beginning, "job.json"), {**job, "attempt": number})
    shutil.copy(os.path.join(first, "node.sh"), beginning)
    os.rename(beginning, folder)
    return folder
