"""What Slurm says of jobs: squeue first, then scontrol, then sacct; as text that is the same from 20.11 to 25.x."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrator.launchers.job import GONE, SILENT, JobStatus
from orchestrator.launchers.slurm.pending_reasons import explanation

RunCommand = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command of Slurm where Slurm is; 127 when there is none, 124 when it does not answer."""
# Words of squeue and sacct after which a job never runs again (man squeue, JOB STATE CODES); all others are kept as they are.
# A job that is requeued goes from COMPLETING to PENDING: none of these is seen of it in between.
OVER = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
ASK_S = 30.0
NOT_FOUND = 127
_SQUEUE = ("%i", "%T", "%r", "%N", "%D", "%M", "%l", "%P", "%S", "%j")  # the name is last, whatever may be in it
_SACCT = ("JobID", "State", "NodeList", "NNodes", "Elapsed", "Timelimit", "Partition", "Start", "JobName")
_OPEN = frozenset(["", "(null)", "N/A", "None", "None assigned", "Unknown", "NOT_SET"])


def run_here(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """RunCommand it on this machine."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=ASK_S)
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, NOT_FOUND, "", f"{argv[0]} not found")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]} gave no answer in {ASK_S:.0f} s")


def ask(run: RunCommand, jobs: Mapping[str, str | None]) -> dict[str, JobStatus | None]:
    """
    What Slurm says of the jobs of these runs; one call of each program at most, however many they are.

    A scheduler that does not answer is no verdict, nor is one that is not here: the word is SILENT. A job that Slurm knew
    once, for it gave an id, and knows no more is GONE: the run's folder decides what became of it.

    Args:
        jobs: RunCommand id -> job id, None where it was never recorded: a job has its run's id as its name.

    Returns:
        RunCommand id -> its job's state; None when no id was recorded and Slurm has no job of that name.
    """
    if not jobs:
        return {}
    listed = run(["squeue", "--noheader", "--array", "--states", "all", *_which(jobs), "--format", "|".join(_SQUEUE)])
    if listed.returncode != 0 and not _is_unknown_job(listed):
        return dict.fromkeys(jobs, _silent(listed))
    found = _matched(jobs, from_squeue(listed.stdout))
    missing = {name: job for name, job in jobs.items() if name not in found and job is not None}
    if len(jobs) == 1 and missing:  # of several it would know no more than squeue, which asks the same daemon
        [job] = missing.values()
        shown = run(["scontrol", "--oneliner", "show", "job", job])
        if shown.returncode not in (0, NOT_FOUND) and not _is_unknown_job(shown):
            return dict.fromkeys(jobs, _silent(shown))
        found |= _matched(missing, from_scontrol(shown.stdout))
    if missing := {name: job for name, job in missing.items() if name not in found}:
        found |= _counted(run, missing)
    return {name: found.get(name) for name in jobs}


def position(run: RunCommand, queue: JobStatus) -> str:
    """Where the job is among those that wait in its partition, in the order in which Slurm looks at them."""
    which = ["--states", "PENDING", "--partition", queue.partition, "--sort", "-p,i"]
    waiting = run(["squeue", "--noheader", "--array", *which, "--format", "%i"]).stdout.split()
    if not queue.partition or queue.job not in waiting:
        return ""
    return f"{waiting.index(queue.job) + 1} of {len(waiting)} waiting in partition {queue.partition}"


def array_of(job: str) -> str:
    """The id of the array that a job is a task of, or else its own."""
    return job.partition("_")[0]


def from_squeue(text: str) -> list[JobStatus]:
    """The jobs in the output of squeue."""
    rows = [line.split("|", len(_SQUEUE) - 1) for line in text.splitlines()]
    return [
        _queue(job, word, reason, (nodes, count, elapsed, limit, partition, start), name=name)
        for job, word, reason, nodes, count, elapsed, limit, partition, start, name in _whole(rows, len(_SQUEUE))
    ]


def from_scontrol(text: str) -> list[JobStatus]:
    """The job in the output of `scontrol --oneliner show job ID`."""
    found = []
    for line in text.splitlines():
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line):
            fields.setdefault(name, value)
        if {"JobId", "JobState"} <= fields.keys():
            rest = ("NodeList", "NumNodes", "RunTime", "TimeLimit", "Partition", "StartTime")
            cells = tuple(fields.get(name, "") for name in rest)
            reason = fields.get("Reason", "").replace("_", " ")
            task = f"{fields.get('ArrayJobId')}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else fields["JobId"]
            found.append(_queue(task, fields["JobState"], reason, cells, name=fields.get("JobName", "")))
    return found


def from_sacct(text: str) -> list[JobStatus]:
    """The jobs in the output of sacct; of one that was requeued the last state is the last line."""
    rows = [line.split("|", len(_SACCT) - 1) for line in text.splitlines()]
    found = []
    for job, state, *cells, name in _whole(rows, len(_SACCT)):
        word, _, by = state.partition(" ")  # "CANCELLED by 1000"
        found.append(_queue(job, word, by.replace("by ", "by user "), tuple(cells), name=name))
    return found


def _which(jobs: Mapping[str, str | None]) -> list[str]:
    """One job is asked for by itself, which costs slurmctld least; of several, all of one's own are."""
    if len(jobs) > 1:
        return ["--me"]
    [(name, job)] = jobs.items()
    return ["--jobs", job] if job is not None else ["--me", "--name", name]


def _matched(jobs: Mapping[str, str | None], listed: Iterable[JobStatus]) -> dict[str, JobStatus]:
    by_job, by_name = {}, {}
    for queue in listed:
        by_job[queue.job], by_name[queue.name] = queue, queue
    found = {name: by_name.get(name) if job is None else by_job.get(job) for name, job in jobs.items()}
    return {name: queue for name, queue in found.items() if queue is not None}


def _counted(run: RunCommand, jobs: Mapping[str, str | None]) -> dict[str, JobStatus]:
    """What accounting has of jobs that slurmctld has forgotten: they are over, whatever it says."""
    ids = ",".join(job for job in jobs.values() if job is not None)
    form = ["--noheader", "--allocations", "--parsable2", "--format", ",".join(_SACCT)]
    done = run(["sacct", *form, "--jobs", ids])
    found = {name: queue for name, queue in _matched(jobs, from_sacct(done.stdout)).items() if queue.over}
    trouble = _last_line(done) if done.returncode not in (0, NOT_FOUND) else ""
    why = "" if "accounting storage is disabled" in trouble else trouble
    return {name: found.get(name) or JobStatus(GONE, why, over=True, job=job or "") for name, job in jobs.items()}


def _queue(job: str, word: str, reason: str, cells: Sequence[str], *, name: str) -> JobStatus:
    nodes, count, elapsed, limit, partition, start = ("" if cell in _OPEN else cell for cell in cells)
    over = word in OVER
    is_old = word == "CANCELLED" and not reason.startswith("by ")  # why it waited before is no news then
    if reason in _OPEN or is_old:
        reason = ""
    return JobStatus(
        word,
        reason,
        over=over,
        job=job,
        name=name,
        explanation="" if over else explanation(reason, job),
        partition=partition,
        nodes=nodes,
        node_count=count,
        elapsed=elapsed,
        limit=limit,
        start=start,
    )


def _whole(rows: Iterable[list[str]], cells: int) -> list[list[str]]:
    """The rows that are; a warning that Slurm prints in between is none."""
    return [row for row in rows if len(row) == cells]


def _is_unknown_job(done: subprocess.CompletedProcess[str]) -> bool:
    return "Invalid job id" in done.stderr


def _silent(done: subprocess.CompletedProcess[str]) -> JobStatus:
    if done.returncode == NOT_FOUND:
        return JobStatus(SILENT, f"there is no {done.args[0]} on this machine", absent=True)
    return JobStatus(SILENT, f"{done.args[0]}: {_last_line(done)}", explanation="Slurm is asked again until it answers")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return re.sub(r"^\w+(: error| error)?: ", "", said[-1])
