"""The state of a Slurm job as squeue, scontrol and sacct report it."""

from __future__ import annotations

from dataclasses import dataclass

SILENT = "UNKNOWN"


GONE = "GONE"


# man squeue, JOB STATE CODES: it is in the queue, for the first time or again.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """
    What the scheduler says of a job; `word` is its own, kept as it is. `over` when the job will not run any more.

    Two words are ours: SILENT when the scheduler did not answer, which says nothing of the job, and GONE when it did, but
    knows no such job (any more). Fields that it left open are empty.
    """

    word: str
    reason: str = ""
    over: bool = False
    job: str = ""
    name: str = ""
    """The name that the job was submitted under."""
    explanation: str = ""
    """The reason as a sentence, with what the user can do."""
    absent: bool = False
    """There is no scheduler here that could be asked; waiting for an answer is in vain."""
    partition: str = ""
    nodes: str = ""
    """The nodes that it has, as the scheduler writes a list."""
    node_count: str = ""
    elapsed: str = ""
    limit: str = ""
    start: str = ""
    """When it began, or is expected to."""

    @property
    def why(self) -> str:
        """The reason with its explanation."""
        return ": ".join(part for part in (self.reason, self.explanation) if part)

    @property
    def waits(self) -> bool:
        """Whether the job is in the queue, where it may have run before."""
        return self.word in WAITING

    @property
    def never_ran(self) -> bool:
        """Whether the job ended without ever having a node, as one does that the scheduler refuses but keeps a record of."""
        return self.over and not self.nodes and self.word != GONE
