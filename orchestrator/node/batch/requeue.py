"""Requeue or cancel this Slurm job: by Slurm's commands, or by libslurm on a compute node without them."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import shutil
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWER_S = 60.0
PAUSES_S = (0.0, 5.0, 15.0, 40.0)  # a restart of the controller takes less
IS_REQUEUED = "Job is pending execution"  # Slurm's error for a job that is in the queue already
SIGKILL = 9


class ArrayAnswer(ctypes.Structure):
    """job_array_resp_msg_t of slurm.h: the fields that all versions have."""

    _fields_ = (
        ("count", ctypes.c_uint32),
        ("jobs", ctypes.POINTER(ctypes.c_char_p)),
        ("errors", ctypes.POINTER(ctypes.c_uint32)),
    )


def requeue(env: Mapping[str, str]) -> str:
    """Requeue the job of this environment; return Slurm's reason if it refuses, else empty."""
    job = job_name(env)
    refusal = ""
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        scontrol = shutil.which("scontrol")
        refusal = by_command([scontrol, "requeue", job]) if scontrol else requeue_by_library(job)
        if not refusal or IS_REQUEUED in refusal:
            return ""
    return f"Slurm did not requeue job {job}: {refusal}"


def cancel(env: Mapping[str, str]) -> str:
    """Cancel the job of this environment; return Slurm's reason if it refuses, else empty."""
    job = job_name(env)
    scancel = shutil.which("scancel")
    refusal = by_command([scancel, job]) if scancel else cancel_by_library(job)
    return f"Slurm did not cancel job {job}: {refusal}" if refusal else ""


def is_preempted(env: Mapping[str, str]) -> bool:
    """True if Slurm takes the nodes of this running job for another one once its GraceTime is over; False without scontrol."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return False
    shown = output_of([scontrol, "--oneliner", "show", "job", job_name(env)], ANSWER_S)
    return " JobState=RUNNING " in shown and re.search(r" PreemptTime=\d", shown) is not None


def output_of(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """The standard output of a command of Slurm; empty if it cannot be run or does not end in time."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def job_name(env: Mapping[str, str]) -> str:
    """The job's id in Slurm's commands."""
    if "SLURM_ARRAY_TASK_ID" in env:  # the job id of the last task is also the id of the whole array
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env["SLURM_JOB_ID"]


def by_command(argv: Sequence[str]) -> str:
    """Run a command of Slurm; return its error, or empty."""
    name = os.path.basename(argv[0])
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        return f"{name} gave no answer in {ANSWER_S:.0f} s"
    output = done.stdout.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else output or f"{name} exited {done.returncode}"


def requeue_by_library(job: str) -> str:
    """Requeue by libslurm, which every machine with srun has; return its error, or empty."""
    slurm = library()
    if slurm is None:
        return "this node has no scontrol, and no libslurm near srun"
    answer = ctypes.POINTER(ArrayAnswer)()
    faults = []
    if slurm.slurm_requeue2(job.encode(), ctypes.c_uint32(0), ctypes.byref(answer)) != 0:
        faults.append(ctypes.get_errno())
    elif bool(answer):
        faults += [code for code in answer.contents.errors[: answer.contents.count] if code]
    return "; ".join(slurm.slurm_strerror(fault).decode("utf-8", "replace") for fault in faults)


def cancel_by_library(job: str) -> str:
    """Cancel by libslurm; return its error, or empty."""
    slurm = library()
    if slurm is None:
        return "this node has no scancel, and no libslurm near srun"
    if slurm.slurm_kill_job2(job.encode(), ctypes.c_uint16(SIGKILL), ctypes.c_uint16(0), None) == 0:
        return ""
    return str(slurm.slurm_strerror(ctypes.get_errno()).decode("utf-8", "replace"))


def library() -> ctypes.CDLL | None:
    path = library_of(shutil.which("srun"))
    if path is None:
        return None
    slurm = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL, use_errno=True)  # its plugins need its symbols
    if hasattr(slurm, "slurm_init"):  # required since 22.05
        slurm.slurm_init(None)
    slurm.slurm_strerror.restype = ctypes.c_char_p
    return slurm


def library_of(srun: str | None) -> str | None:
    """The path of libslurm below the prefix that srun is installed in; None if there is none."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(srun))) if srun else ""
    names = ("libslurm.so*", "slurm*/libslurmfull.so")
    patterns = [os.path.join(prefix, folder, name) for folder in ("lib*", "lib*/*") for name in names]
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), None) if prefix else None
