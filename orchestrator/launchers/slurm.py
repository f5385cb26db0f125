"""Starts the agents through Slurm: our batch script, on the machine that has sbatch and a workdir which the nodes share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orchestrator import plan as plans
from orchestrator.bundle import Bundle
from orchestrator.errors import LaunchError, NodeError, NodesError
from orchestrator.launchers.base import Place, Queue
from orchestrator.launchers.slurm_checks import check
from orchestrator.launchers.slurm_host import SlurmHost
from orchestrator.launchers.slurm_queue import ask, find, run_time_s
from orchestrator.plan import LaunchPlan

KILL_WAIT_S = 60.0  # Slurm's KillWait is 30 s by default, between TERM and KILL
POLL_S = 0.5
UNSEEN_S = 90.0  # NFS clients look for new files in a folder every 60 s at the latest, by default


class SlurmLauncher:
    """Works on the host that has Slurm: this machine, or a login node over SSH."""

    def __init__(self, plan: LaunchPlan, host: SlurmHost) -> None:
        self._plan = plan
        self._host = host
        self._has_begun = False
        self._is_seen = False

    def connect(self) -> Sequence[str]:
        """Make sure that the host can submit, that the cluster can run the job, and that there is the nodes' Python."""
        with self._reached():
            self._host.require()
            doubts = check(self._host.run, self._plan)
            self._host.endpoint()
        return doubts

    def start(self, bundle: Bundle) -> str | None:
        """Write the files to the shared workdir and submit; returns Slurm's job id."""
        plan, head = self._plan, self._plan.head
        with self._reached():
            endpoint = self._host.endpoint()
            if not endpoint.prepare(head.workdir, bundle.digest):
                endpoint.put_bundle(head.workdir, bundle.digest, bundle.archive)
            for file in plans.node_files(plan)[head.name]:
                folder, _, name = file.path.rpartition("/")
                endpoint.put_files(folder, [(name, file.text, file.mode)])
            self._has_begun = True
            return self._submit()

    def _submit(self) -> str:
        try:
            return self._host.submit(self._plan)
        except LaunchError:
            # sbatch fails, too, when it is only the answer of the controller that was lost
            if job := find(self._host.run, self._plan.run_id):
                return job
            raise

    def undo(self) -> list[str]:
        """Cancel the job that was submitted, or is just being, if one is."""
        return self.stop(None, grace_s=0.0) if self._has_begun else []

    def attempt(self) -> int:
        """Slurm begins a further one when it requeues the job."""
        with self._reached():
            trace = self._host.trace(self._plan)
        return trace.attempt if trace else 1

    def places(self, attempt: int) -> Sequence[Place]:
        """One place with all nodes: which they are is seen there once they have started."""
        with self._reached():
            self._host.endpoint()
        return [Place(self._host.endpoint, replace(self._plan, attempt=attempt).attempt_dir(self._plan.head), None)]

    def queue(self, job: str | None) -> Queue | None:
        """Slurm's word on the job; one whose id was never recorded is found by its name."""
        with self._reached():
            job = job or find(self._host.run, self._plan.run_id)
            return None if job is None else self._unseen(job, ask(self._host.run, job))

    def _unseen(self, job: str, queue: Queue) -> Queue:
        """
        Slurm's word, with a remark where the job should have left something in its folder by now and has not.

        Slurm itself writes the first file there, the job's own log: a mark by the first node that costs nothing.
        """
        if self._is_seen or not (queue.over or queue.word == "RUNNING") or queue.word == "CANCELLED":
            return queue
        trace = self._host.trace(self._plan)
        self._is_seen = trace is None or trace.has_log  # a folder that was removed since says nothing
        if self._is_seen or (not queue.over and run_time_s(self._host.run, job) < UNSEEN_S):
            return queue
        folder = f"{self._plan.run_dir(self._plan.head)} on {self._host.name}"
        remark = f"nothing of the job shows in {folder}: workdir has to be a folder that it shares with the nodes"
        return replace(queue, reason=f"{queue.reason}; {remark}" if queue.reason else remark)

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """Cancel the job, and wait until Slurm has ended every step of it."""
        try:
            job = job or self._host.withdraw(self._plan) or find(self._host.run, self._plan.run_id)
            if job is None:
                return []
            self._host.run(["scancel", job])
            deadline = time.monotonic() + grace_s + KILL_WAIT_S
            while not (queue := ask(self._host.run, job)).over and time.monotonic() < deadline:
                time.sleep(POLL_S)
        except NodeError as exc:
            which = f"job {job}" if job else f"a job named {self._plan.run_id}, should there be one,"
            return [f"{exc.node}: {exc}; {which} was not cancelled"]
        if queue.over:
            return []
        return [f"Slurm job {job} is still {queue.word} {queue.reason}".strip()]

    def close(self) -> None:
        """Close the connections."""
        self._host.close()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Name the host that fails."""
        try:
            yield
        except NodeError as exc:
            raise NodesError([exc], 1) from exc
