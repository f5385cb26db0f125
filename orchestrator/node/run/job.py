"""job.json of one node: read, checked, and completed with the node's name and rank."""

from __future__ import annotations

import os

from orchestrator.node.run.run_folder import attempt_folder
from orchestrator.node.system.fast_stdlib import loads
from orchestrator.node.system.files import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Sequence


class Refused(Exception):
    """The agent does not start the ranks; the message is the cause and the next step."""

    ends_run = True


class AlreadyRunning(Refused):
    """Another agent owns the node folder, so its state must not be changed."""

    ends_run = False


class PortTaken(Refused):
    """Another program listens on the rendezvous port; the launcher retries on another port, so the run has not ended."""

    ends_run = False


class Job:
    """job.json for one node. Not a dataclass: importing dataclasses takes longer than all other imports of an agent."""

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
    keep: Sequence[str] = ()  # folders relative to the ranks' working folder, each a link into kept_dir
    kept_dir: str = ""
    commit: str = ""  # of the code; empty if it is in no git work tree
    orphan_timeout_s: float | None = None
    isolation_timeout_s: float | None = None
    accelerator: str = "auto"  # of the inventory
    network: str = "auto"  # of the inventory
    bind: str = "auto"  # of the inventory: auto or none
    restarted: str = ""  # why this attempt follows another one; empty for the first
    card_sample_s: float = 60.0  # between two samples of the cards
    slurm: dict[str, Any] | None = None  # if it is a Slurm job: requeue, max_retries, warn_s, spares, requeues, shared

    def __init__(self, **fields: object) -> None:
        unknown = [name for name in fields if name not in Job.__annotations__]
        missing = [name for name in Job.__annotations__ if name not in fields and not hasattr(Job, name)]
        if unknown or missing:
            raise TypeError(f"unknown: {unknown}, missing: {missing}")
        vars(self).update(fields)

    @property
    def is_per_node(self) -> bool:
        """True if the program runs once per node and starts the node's ranks itself, as torchrun does."""
        return bool(self.program.get("per_node"))

    @property
    def follows_head(self) -> bool:
        """True if this node's program is ended with that of the first node, whose exit decides the run (--until-head)."""
        return bool(self.program.get("until_head")) and self.node_rank > 0

    @property
    def typed_words(self) -> Sequence[str]:
        """The program and its arguments as the user typed them: orch has added -u to Python's."""
        words: Sequence[str] = self.program["args"]
        return words[1:] if self.program["python"] and words[0] == "-u" else words

    @property
    def hostfile(self) -> str:
        """The list of the nodes that the programs of this node may read."""
        return os.path.join(attempt_folder(self.run_dir, self.attempt), self.node, "hostfile")

    @property
    def processes(self) -> Sequence[Optional[int]]:
        """The rank of each process that the agent starts; None for a program that starts the node's ranks itself."""
        return [None] if self.is_per_node else self.rank_numbers

    @property
    def rank_numbers(self) -> range:
        first = sum(self.ranks[: self.node_rank])
        return range(first, first + self.ranks[self.node_rank])


def load_job(path: str, node: str, node_rank: int) -> Job:
    """Read job.json for one node; Refused if it is invalid or has no such node. Without a name, for any node of that rank."""
    try:
        with open(path, encoding="utf-8") as file:
            raw = loads(file.read())
        version = raw.pop("version")
        for name in ("run_dir", "bundle_dir", "kept_dir"):
            if name in raw:
                raw[name] = absolute_path(raw[name])
        job = Job(node=node, node_rank=node_rank, **raw)
        fault = fault_of(job, os.path.dirname(os.path.abspath(path)))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:  # a wrong key or type
        raise Refused(f"{path}: not a job: {error!r}") from error
    if version != 1 or fault:
        raise Refused(f"{path}: {fault or f'version {version}: agent and controller are of different versions'}")
    return job


def fault_of(job: Job, folder: str) -> str:
    """The fault in a job.json of this folder; empty if there is none."""
    if not job.program["args"] or not {"python", "pythonpath", "cwd"} <= set(job.program):
        return "program: expected args, python, pythonpath and cwd"
    if job.node_rank not in range(len(job.ranks)) or (job.nodes and job.node and job.nodes[job.node_rank] != job.node):
        return f"{job.node} is not the node of rank {job.node_rank}"
    expected = attempt_folder(job.run_dir, job.attempt)
    return "" if os.path.realpath(expected) == os.path.realpath(folder) else f"run_dir: this file belongs in {expected}"
