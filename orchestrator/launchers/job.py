"""The status of a Slurm job as squeue, scontrol and sacct report it."""

from __future__ import annotations

from dataclasses import dataclass

SILENT = "UNKNOWN"
"""The scheduler did not answer: nothing is known of the job."""
GONE = "GONE"
"""The scheduler answered, and has no such job, or no longer."""
SUSPENDED = "SUSPENDED"
"""The job's processes are stopped, and it keeps its nodes."""
STOPPED = "STOPPED"
"""As SUSPENDED, by scancel --signal=STOP, and it keeps its cores."""

# man squeue, JOB STATE CODES: the job is in the queue, for the first time or after it was requeued.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """
    A job's status. `state` is the scheduler's word, unchanged, or SILENT or GONE; `over` if the job cannot run any more.

    Fields that the scheduler left open are empty.
    """

    state: str
    reason: str = ""
    over: bool = False
    job: str = ""
    name: str = ""
    """The job's name."""
    run_id: str = ""
    """The run in whose folder the job was submitted; of a sweep, the first. Empty if the folder is not a run's."""
    explanation: str = ""
    """The reason as a sentence, with what the user can do."""
    absent: bool = False
    """No scheduler is installed here: querying once more cannot help."""
    partition: str = ""
    nodes: str = ""
    """The job's nodes, in the scheduler's notation of a list."""
    node_count: str = ""
    elapsed: str = ""
    limit: str = ""
    lost_host: str = ""
    """The node of the batch script if the job has lost it; with spare nodes, a job outlives that."""
    start: str = ""
    """Its start time, or the expected one."""

    @property
    def why(self) -> str:
        """The reason with its explanation."""
        return ": ".join(part for part in (self.reason, self.explanation) if part)

    @property
    def waits(self) -> bool:
        """True while the job is in the queue; it may have run before."""
        return self.state in WAITING

    @property
    def never_ran(self) -> bool:
        """True if the job ended without ever having a node, as when the scheduler refused it but keeps a record of it."""
        return self.over and not self.nodes and self.state != GONE
