"""job.json and this node's place in it: read, checked, and turned into a folder and a command."""

from __future__ import annotations

import json
import os
import sys

from orchestrator.node.events import write_json

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every agent some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


NO_RETRY = 93  # a rank that exits so says that a retry cannot help
REQUEUE = 99  # a rank that exits so has saved, and asks to be started again


class Refused(Exception):
    """The agent does not start the ranks; the message says why, and what to change."""

    def event(self) -> dict[str, Any]:
        return agent_failed(str(self))


class AlreadyRunning(Refused):
    """Another agent owns the node folder, so its state must not be written."""

    def event(self) -> dict[str, Any]:
        return {"event": "note", "text": str(self)}


class PortTaken(Refused):
    """Somebody listens on the rendezvous port; who launches tries again on another one, so this is no end of the run."""

    def event(self) -> dict[str, Any]:
        return {"event": "note", "text": str(self)}


def agent_failed(text: str) -> dict[str, Any]:
    """The last event when no rank is to blame."""
    return {"event": "agent-finished", "state": "FAILED", "exit": None, "text": text}


class Job:
    """job.json and this node's place in it. A plain class: importing dataclasses takes longer than all the rest of an agent."""

    node: str
    node_rank: int
    run_id: str
    attempt: int
    run_dir: str
    bundle_dir: str
    nodes: list[str] | None
    addresses: list[str]
    ranks: list[int]
    program: dict[str, Any]
    grace_s: float
    orphan_timeout_s: float | None = None
    isolation_timeout_s: float | None = None
    slurm: dict[str, Any] | None = (
        None  # requeue, max_retries, warn_s, spares, requeues and shared, where Slurm runs the job
    )

    def __init__(self, **fields: object) -> None:
        strange = [name for name in fields if name not in Job.__annotations__]
        missing = [name for name in Job.__annotations__ if name not in fields and not hasattr(Job, name)]
        if strange or missing:
            raise TypeError(f"unknown: {strange}, missing: {missing}")
        vars(self).update(fields)

    @property
    def rank_numbers(self) -> range:
        first = sum(self.ranks[: self.node_rank])
        return range(first, first + self.ranks[self.node_rank])


def load_job(path: str, node: str, node_rank: int) -> Job:
    """Read job.json for one node; Refused when it is no job, or not this node's."""
    try:
        with open(path, encoding="utf-8") as file:
            raw = json.load(file)
        version = raw.pop("version")
        for name in ("run_dir", "bundle_dir"):
            raw[name] = os.path.abspath(os.path.expanduser(raw[name]))
        job = Job(node=node, node_rank=node_rank, **raw)
        fault = fault_of(job, os.path.dirname(os.path.abspath(path)))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:  # a key or a type is not what it should be
        raise Refused(f"{path}: not a job: {error!r}") from error
    if version != 1 or fault:
        raise Refused(f"{path}: {fault or f'version {version}: agent and controller are of different versions'}")
    return job


def fault_of(job: Job, folder: str) -> str:
    """What is wrong with a job that was found in the folder; empty when nothing is."""
    if not job.program["args"] or not {"python", "pythonpath", "cwd"} <= set(job.program):
        return "program: expected args, python, pythonpath and cwd"
    if job.node_rank not in range(len(job.ranks)) or (job.nodes and job.nodes[job.node_rank] != job.node):
        return f"{job.node} is not the node of rank {job.node_rank}"
    home = os.path.join(job.run_dir, f"attempt-{job.attempt}")
    return "" if os.path.realpath(home) == os.path.realpath(folder) else f"run_dir: this file belongs in {home}"


def begin_attempt(path: str) -> str:
    """Make the folder of the next attempt of the job, in one step: job.json with its number, and the first one's node.sh."""
    import shutil  # noqa: PLC0415  milliseconds that a rendezvous need not wait for

    from orchestrator.node.endpoint.report import ATTEMPT, newest_attempt  # noqa: PLC0415  as above

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


def prepare_folder(job: Job, folder: str) -> str:
    """Clear what an earlier agent left, copy the code; the folder the ranks run in."""
    import shutil  # noqa: PLC0415  milliseconds that a rendezvous need not wait for

    for name in ("progress", "error", "stacks", "code", "DONE", "port-taken"):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    for name in ("progress", "error", "stacks"):
        os.mkdir(os.path.join(folder, name))
    if job.program["cwd"] is None:
        return folder
    code = os.path.join(folder, "code")
    shutil.copytree(os.path.join(job.bundle_dir, "code"), code, symlinks=True)
    cwd = os.path.normpath(os.path.join(code, job.program["cwd"]))
    if os.path.commonpath((cwd, code)) != code:
        raise Refused(f"{job.program['cwd']}: not a folder of the code that was sent to {job.node}")
    os.makedirs(cwd, exist_ok=True)  # an empty one does not travel
    return cwd


def script_of(args: Sequence[str]) -> str | None:
    """The script among a Python interpreter's arguments; None for -m, -c and standard input."""
    rest = iter(args)
    for arg in rest:
        if not arg.startswith("-"):
            return arg
        if arg in ("-W", "-X", "--check-hash-based-pycs"):
            next(rest, None)
        elif not arg.startswith(("--", "-W", "-X")) and (arg == "-" or "m" in arg or "c" in arg):
            return None  # -um pkg too
    return None


def command_of(job: Job, cwd: str) -> list[str]:
    """Argv of a rank; Refused when there is no such program."""
    import shutil  # noqa: PLC0415  as above

    args = job.program["args"]
    if job.program["python"]:
        script = script_of(args)
        if script is not None and not os.path.exists(os.path.join(cwd, script)):
            raise Refused(f"{script}: no such script on {job.node}, looked for from {cwd}")
        return [sys.executable, *args]
    if shutil.which(os.path.join(cwd, args[0]) if "/" in args[0] else args[0]) is None:
        raise Refused(f"{args[0]}: no such executable on {job.node}" + ("" if "/" in args[0] else ", not on its PATH"))
    return list(args)
