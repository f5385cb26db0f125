"""Starts the agents through Slurm: our batch script, on the machine that has sbatch and a workdir which the nodes share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.bundle import Bundle
from orchestrator.endpoint.access import Terminal
from orchestrator.errors import LaunchError, NodeError, NodesError
from orchestrator.launchers.base import NodeFolders
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.job import GONE, JobStatus
from orchestrator.launchers.slurm import unshared_workdir
from orchestrator.launchers.slurm.host import SlurmHost
from orchestrator.launchers.slurm.queue import array_of, ask, position
from orchestrator.launchers.slurm.submit import NOT_REACHED
from orchestrator.names.hostlist import expand
from orchestrator.names.slurm_options import time_limit_s
from orchestrator.plan.files import node_files
from orchestrator.plan.plan import LaunchPlan

KILL_WAIT_S = 60.0  # Slurm's KillWait is 30 s by default, between TERM and KILL
POLL_S = 0.5
UNSEEN_S = 90.0  # NFS clients look for new files in a folder every 60 s at the latest, by default
# What sbatch says when Slurm may have taken the job all the same, in whichever version.
IN_DOUBT = ("timed out", "Zero Bytes", "receive failure", "shutdown failure", "Unexpected message", "reset by peer")
DOUBT_S, LATE_S = 60.0, 5.0  # a busy slurmctld may handle a request after its sender has given up


class SlurmLauncher:
    """Works on the host that has Slurm: this machine, or a login node over SSH."""

    def __init__(self, plan: LaunchPlan, host: SlurmHost, terminal: Terminal | None = None) -> None:
        self._plan = plan
        self._host = host
        self._terminal = terminal
        self._is_apart: bool | None = None
        self._nodes: DirectLauncher | None = None
        self._may_be_submitted = False
        self._is_seen = False

    @property
    def plan(self) -> LaunchPlan:
        """The plan, adapted if the nodes turned out to share no workdir."""
        return self._plan

    def connect(self) -> Sequence[str]:
        """Make sure that the host can submit, that the cluster can run the job, and that there is the nodes' Python."""
        from orchestrator.launchers.slurm.checks import check  # noqa: PLC0415  only before a submission

        with self._reached():
            self._host.require()
            doubts = check(self._host.run, self._plan)
            self._host.endpoint()
        return doubts

    def start(self, bundle: Bundle) -> str | None:
        """Write the files to the shared workdir and submit; returns Slurm's job id."""
        with self._reached():
            self._plan = self.push(self._plan, bundle)
            self._may_be_submitted = True
            try:
                return self._host.submit(self._plan)
            except LaunchError as refusal:
                return self._submitted_all_the_same(refusal)

    def push(self, plan: LaunchPlan, bundle: Bundle) -> LaunchPlan:
        """Write what a run needs to the shared workdir; where there is none, to each node's own. Returns the plan that holds then."""
        self._put(plan, bundle)
        if self._is_apart is None:
            self._is_apart = unshared_workdir.lack_files(plan, self._host)
        if not self._is_apart:
            return plan
        plan = unshared_workdir.set_apart(plan)
        self._put(plan, bundle)
        files = node_files(plan)[plan.head.name]
        self._over_ssh().push(bundle, {node.name: files for node in plan.nodes})
        return plan

    def _put(self, plan: LaunchPlan, bundle: Bundle) -> None:
        head, endpoint = plan.head, self._host.endpoint()
        if not endpoint.prepare(head.workdir, bundle.digest):
            endpoint.put_bundle(head.workdir, bundle.digest, bundle.archive, bundle.archive_sha256)
        for file in node_files(plan)[head.name]:
            folder, _, name = file.path.rpartition("/")
            endpoint.put_files(folder, [(name, file.text, file.mode)])

    def undo(self) -> list[str]:
        """Cancel the job that was submitted, or is just being, if one is."""
        return self.stop(None, grace_s=0.0) if self._may_be_submitted else []

    def attempt(self) -> int:
        """Slurm begins a further one when it requeues the job."""
        with self._reached():
            trace = self._host.trace(self._plan)
        return trace.attempt if trace else 1

    def places(self, attempt: int) -> Sequence[NodeFolders]:
        """One shared folder for all nodes, which appear there once they have started; if the workdir is not shared, one entry per node."""
        if unshared_workdir.is_apart(self._plan):
            return self._over_ssh().places(attempt)
        with self._reached():
            self._host.endpoint()
        return [
            NodeFolders(self._host.endpoint, replace(self._plan, attempt=attempt).attempt_dir(self._plan.head), None)
        ]

    def queue(self, job: str | None) -> JobStatus | None:
        """Slurm's word on the job; one whose id was never recorded is found by its name."""
        with self._reached():
            return self._asked(job)

    def position(self, queue: JobStatus) -> str:
        """Among the jobs of its partition."""
        with self._reached():
            return position(self._host.run, queue)

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """Cancel the job, and wait until Slurm has ended every step of it."""
        try:
            return self._cancelled(job or self._host.withdraw(self._plan), time.monotonic() + grace_s + KILL_WAIT_S)
        except NodeError as exc:
            which = f"job {job}" if job else f"a job named {self._plan.run_id}, should there be one,"
            return [f"{exc}; {which} was not cancelled"]

    def _cancelled(self, job: str | None, deadline: float) -> list[str]:
        """Cancel the job until Slurm reports it over; a job of another name is not the run's, whatever id was recorded."""
        is_cancelled, own_name = False, self._plan.job_name
        while (queue := self._asked(job)) is not None:
            if queue.job and queue.word != GONE and queue.name != own_name:
                found = f"Slurm job {queue.job} is named {queue.name}, not {own_name}: it was not cancelled"
                return [f"{found}; `squeue --me --name={own_name}` lists the run's own job, and `scancel ID` ends that"]
            if queue.over:
                break
            if queue.absent or time.monotonic() > deadline:
                name = queue.job or job or self._plan.run_id
                return [f"Slurm job {name} is not known to be over: {queue.word} {queue.why}".strip()]
            # once Slurm answers; and anew if the job was just putting itself back into the queue
            if queue.job and (not is_cancelled or queue.waits):
                is_cancelled = self._host.run(["scancel", job or array_of(queue.job)]).returncode == 0
            time.sleep(POLL_S)
        return []

    def close(self) -> None:
        """Close the connections."""
        if self._nodes is not None:
            self._nodes.close()
        self._host.close()

    def _over_ssh(self) -> DirectLauncher:
        """The nodes themselves: the candidates, or those that Slurm has chosen of them, if it says."""
        if self._nodes is None:
            queue = self.queue(None) if self._plan.by_count else None
            chosen = expand(queue.nodes) if queue is not None and queue.nodes else []
            nodes = tuple(node for node in self._plan.nodes if node.name in chosen) or self._plan.nodes
            self._nodes = unshared_workdir.nodes_behind(replace(self._plan, nodes=nodes), self._host, self._terminal)
        return self._nodes

    def _asked(self, job: str | None) -> JobStatus | None:
        name = self._plan.job_name
        queue = ask(self._host.run, {name: job})[name]
        return None if queue is None else self._unseen(queue)

    def _unseen(self, queue: JobStatus) -> JobStatus:
        """
        Slurm's word, with a remark where the job should have left something in its folder by now and has not.

        Slurm itself writes the first file there, the job's own log: a mark by the first node that costs nothing.
        """
        if (
            self._is_seen
            or unshared_workdir.is_apart(self._plan)
            or not (queue.over or queue.word == "RUNNING")
            or queue.word == "CANCELLED"
            or queue.never_ran
        ):
            return queue
        trace = self._host.trace(self._plan)
        self._is_seen = trace is None or trace.has_log  # a folder that was removed since says nothing
        if self._is_seen or (not queue.over and time_limit_s(queue.elapsed) < UNSEEN_S):
            return queue
        folder = f"{self._plan.run_dir(self._plan.head)} on {self._host.name}"
        remark = f"nothing of the job shows in {folder}: workdir has to be a folder that it shares with the nodes, or they have to let orch log in"
        return replace(queue, reason=f"{queue.reason}; {remark}" if queue.reason else remark)

    def _submitted_all_the_same(self, refusal: LaunchError) -> str:
        """
        The id of a job that Slurm took though sbatch failed, as after a time-out: it is not submitted twice.

        Of a job that no node could run, slurmctld keeps a FAILED record although it refused it: that job was not taken.

        Raises:
            LaunchError: the refusal; Slurm has no such job, or does not say.
        """
        said = str(refusal)
        patience_s = DOUBT_S if any(word in said for word in IN_DOUBT) else 0.0
        queue = None if NOT_REACHED in said else self._sought(patience_s)
        if queue is not None and queue.job and not queue.never_ran:
            return array_of(queue.job)
        self._may_be_submitted = queue is not None and not queue.never_ran
        raise refusal

    def _sought(self, patience_s: float) -> JobStatus | None:
        """The run's job by its name; None once Slurm has said for a while that there is none."""
        deadline = time.monotonic() + patience_s
        while (queue := self._asked(None)) is None or not queue.job:
            if queue is None:
                deadline = min(deadline, time.monotonic() + LATE_S)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return queue

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Name the host that fails."""
        try:
            yield
        except NodeError as exc:
            raise NodesError([exc], 1) from exc
