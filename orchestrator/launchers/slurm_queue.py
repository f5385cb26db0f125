"""What Slurm says of a job: squeue first, then scontrol, then sacct."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

from orchestrator.launchers.base import Queue

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command of Slurm where Slurm is; 127 when there is none, 124 when it does not answer."""
# Words of squeue and sacct after which a job never runs again (man squeue, JOB STATE CODES); all others are kept as they are.
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


def run_here(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run it on this machine."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=ASK_S)
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]} not found")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]} gave no answer in {ASK_S:.0f} s")


def find(run: Run, run_id: str) -> str | None:
    """The id of the job of that run, which is its name; None when the queue has none."""
    done = run(["squeue", "--noheader", "--me", "--name", run_id, "--format", "%i"])
    return done.stdout.split()[0] if done.stdout.split() else None


def run_time_s(run: Run, job: str) -> float:
    """For how long the job has been running; 0 where nobody says."""
    said = run(["squeue", "--noheader", "--jobs", job, "--format", "%M"]).stdout.strip()
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", said)
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def ask(run: Run, job: str) -> Queue:
    """Where the job is: squeue first, then scontrol, then sacct; an unknown word is kept, a silent scheduler is no verdict."""
    done = run(["squeue", "--noheader", "--jobs", job, "--format", "%T|%r"])
    if done.returncode == 0 and done.stdout.strip():
        word, _, reason = done.stdout.strip().splitlines()[0].partition("|")
        return Queue(word, "" if reason == "None" else reason, over=word in OVER)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return Queue("UNKNOWN", f"squeue: {done.stderr.strip()}")
    shown = run(["scontrol", "--oneliner", "show", "job", job])
    found = re.search(r"\bJobState=(\S+) Reason=(\S+)", shown.stdout)
    if found:
        return Queue(found[1], "" if found[2] == "None" else found[2], over=found[1] in OVER)
    counted = run(["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job, "--format", "State"])
    word = counted.stdout.strip().split(" ")[0]  # "CANCELLED by 1000"
    return Queue(word or "GONE", over=True)  # nobody knows it: the run's folder decides what became of it
