"""The status of jobs, from squeue, then scontrol, then sacct; their text output is the same from Slurm 20.11 to 25.x."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrator.launchers.job import GONE, SILENT, WAITING, JobStatus
from orchestrator.launchers.slurm.environment import FILTERS, without
from orchestrator.launchers.slurm.pending_reasons import explanation
from orchestrator.node.run.run_folder import ATTEMPT
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.portable.names.hostlist import expand

RunCommand = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a Slurm command on the machine that has Slurm; exit code 127 if it is not installed, 124 if it does not answer."""

# States in squeue and sacct after which a job never runs again (man squeue, JOB STATE CODES); all others are passed on unchanged.
# A job that is requeued goes from COMPLETING to PENDING and never shows one of these in between.
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
COMMAND_S = 30.0
NOT_FOUND = 127
# Names last: they may contain the separator.
_SQUEUE = ("%i", "%T", "%r", "%N", "%D", "%M", "%l", "%P", "%S", "%B", "%Z", "%j")
_SACCT = ("JobID", "State", "NodeList", "NNodes", "Elapsed", "Timelimit", "Partition", "Start", "JobName")
_EMPTY = frozenset(["", "(null)", "N/A", "None", "None assigned", "Unknown", "NOT_SET"])


def run_here(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command on this machine, as a RunCommand."""
    env = without(os.environ, FILTERS)
    try:
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, errors="replace", check=False, timeout=COMMAND_S
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, NOT_FOUND, "", f"{argv[0]} not found")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]} gave no answer in {COMMAND_S:.0f} s")


def job_statuses(run: RunCommand, jobs: Mapping[str, str | None]) -> dict[str, JobStatus | None]:
    """
    Query the status of jobs, with at most one call of each program.

    The state is SILENT if Slurm does not answer or is not installed: nothing is known then. It is GONE if Slurm assigned the
    job an id but no longer lists it: the run's folder decides how it ended.

    Args:
        jobs: run id -> job id, None if no id was recorded; that job is found by its working folder, which is the run's.

    Returns:
        Run id -> status; None if no id was recorded and Slurm has no job in the run's folder.
    """
    if not jobs:
        return {}
    listed = run(
        ["squeue", "--noheader", "--array", "--states", "all", *_job_filter(jobs), "--format", "|".join(_SQUEUE)]
    )
    if listed.returncode != 0 and not _is_unknown_job(listed):
        return dict.fromkeys(jobs, _no_answer(listed))
    found = _matched(jobs, from_squeue(listed.stdout))
    missing = {run_id: job for run_id, job in jobs.items() if run_id not in found and job is not None}
    if len(jobs) == 1 and missing:  # for several jobs squeue suffices, which queries the same daemon
        [job] = missing.values()
        shown = run(["scontrol", "--oneliner", "show", "job", job])
        if shown.returncode not in (0, NOT_FOUND) and not _is_unknown_job(shown):
            return dict.fromkeys(jobs, _no_answer(shown))
        found |= _matched(missing, from_scontrol(shown.stdout))
    if missing := {run_id: job for run_id, job in missing.items() if run_id not in found}:
        found |= _by_accounting(run, missing)
    return {run_id: found.get(run_id) for run_id in jobs}


def queue_position(run: RunCommand, status: JobStatus) -> str:
    """The job's position among those that wait in its partition, in the order of the scheduler."""
    pending = ["--states", "PENDING", "--partition", status.partition, "--sort", "-p,i"]
    waiting = run(["squeue", "--noheader", "--array", *pending, "--format", "%i"]).stdout.split()
    if not status.partition or status.job not in waiting:
        return ""
    return f"{waiting.index(status.job) + 1} of {len(waiting)} waiting in partition {status.partition}"


def array_id(job: str) -> str:
    """The id of the job's array, or of the job itself if it is not an array task."""
    return job.partition("_")[0]


def from_squeue(text: str) -> list[JobStatus]:
    """Parse the output of squeue."""
    rows = [line.split("|", len(_SQUEUE) - 1) for line in text.splitlines()]
    return [
        _job_status(job, state, reason, tuple(cells), name=name, workdir=workdir, batch_host=batch_host)
        for job, state, reason, *cells, batch_host, workdir, name in _complete(rows, len(_SQUEUE))
    ]


def from_scontrol(text: str) -> list[JobStatus]:
    """Parse the output of `scontrol --oneliner show job ID`."""
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
            workdir = re.search(r" WorkDir=(.*?)(?= StdErr=|$)", line)
            names = {"name": fields.get("JobName", ""), "workdir": workdir[1] if workdir else ""}
            batch_host = fields.get("BatchHost", "")
            found.append(_job_status(task, fields["JobState"], reason, cells, **names, batch_host=batch_host))
    return found


def from_sacct(text: str) -> list[JobStatus]:
    """Parse the output of sacct; a requeued job has several lines, the newest last."""
    rows = [line.split("|", len(_SACCT) - 1) for line in text.splitlines()]
    found = []
    for job, state_text, *cells, name in _complete(rows, len(_SACCT)):
        state, _, by = state_text.partition(" ")  # "CANCELLED by 1000"
        found.append(_job_status(job, state, by.replace("by ", "by user "), tuple(cells), name=name))
    return found


def _job_filter(jobs: Mapping[str, str | None]) -> list[str]:
    """The options of squeue: one job alone, which costs slurmctld least; for several, all jobs of this user."""
    if len(jobs) > 1:
        return ["--me"]
    [job] = jobs.values()
    return ["--jobs", job] if job is not None else ["--me"]


def _matched(jobs: Mapping[str, str | None], listed: Iterable[JobStatus]) -> dict[str, JobStatus]:
    statuses = list(listed)
    by_job = {status.job: status for status in statuses}
    by_run = {status.run_id: status for status in statuses}
    found = {run_id: by_run.get(run_id) if job is None else by_job.get(job) for run_id, job in jobs.items()}
    return {run_id: status for run_id, status in found.items() if status is not None}


def _by_accounting(run: RunCommand, jobs: Mapping[str, str | None]) -> dict[str, JobStatus]:
    """The status by accounting of jobs that slurmctld no longer lists: they are over in any case."""
    ids = ",".join(job for job in jobs.values() if job is not None)
    columns = ["--noheader", "--allocations", "--parsable2", "--format", ",".join(_SACCT)]
    done = run(["sacct", *columns, "--jobs", ids])
    found = {name: status for name, status in _matched(jobs, from_sacct(done.stdout)).items() if status.over}
    error = _last_line(done) if done.returncode not in (0, NOT_FOUND) else ""
    reason = "" if "accounting storage is disabled" in error else error
    return {name: found.get(name) or JobStatus(GONE, reason, over=True, job=job or "") for name, job in jobs.items()}


def _job_status(
    job: str, state: str, reason: str, cells: Sequence[str], *, name: str, workdir: str = "", batch_host: str = ""
) -> JobStatus:
    nodes, count, elapsed, limit, partition, start = ("" if cell in _EMPTY else cell for cell in cells)
    is_over = state in OVER
    # the reason why it was pending before
    is_outdated = state in {"CANCELLED", "COMPLETED"} and not reason.startswith("by ")
    if reason in _EMPTY or is_outdated:
        reason = ""
    run_id, lost_host = _run_of(workdir), ""
    # while a job completes, its nodes leave it one by one
    if run_id and nodes and batch_host not in _EMPTY and state not in {"COMPLETING", *WAITING}:
        lost_host = "" if _has(nodes, batch_host) else batch_host
    return JobStatus(
        state,
        reason,
        over=is_over,
        job=job,
        name=name,
        run_id=run_id,
        explanation="" if is_over else explanation(state, reason, job, lost_host),
        lost_host=lost_host,
        partition=partition,
        nodes=nodes,
        node_count=count,
        elapsed=elapsed,
        limit=limit,
        start=start,
    )


def _run_of(workdir: str) -> str:
    """The run whose attempt's folder is a job's working folder; empty if it is another folder."""
    run, _, attempt = workdir.rstrip("/").rpartition("/")
    run_id = run.rpartition("/")[2]
    return run_id if attempt.startswith(ATTEMPT) and RUN_ID.fullmatch(run_id) else ""


def _has(nodes: str, name: str) -> bool:
    """True if the node is in the scheduler's list, or the list cannot be parsed."""
    try:
        return name in expand(nodes)
    except ValueError:
        return True


def _complete(rows: Iterable[list[str]], cells: int) -> list[list[str]]:
    """The rows with all cells; Slurm prints warnings in between."""
    return [row for row in rows if len(row) == cells]


def _is_unknown_job(done: subprocess.CompletedProcess[str]) -> bool:
    return "Invalid job id" in done.stderr


def _no_answer(done: subprocess.CompletedProcess[str]) -> JobStatus:
    if done.returncode == NOT_FOUND:
        return JobStatus(SILENT, f"there is no {done.args[0]} on this machine", absent=True)
    return JobStatus(SILENT, f"{done.args[0]}: {_last_line(done)}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return re.sub(r"^\w+(: error| error)?: ", "", lines[-1])
