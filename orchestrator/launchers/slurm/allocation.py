"""Starts the agents as a step of the Slurm job in which orch runs. Only steps of the run are ever cancelled, never that job."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import LaunchError
from orchestrator.launchers.job import SILENT, JobStatus
from orchestrator.launchers.slurm.launcher import CANCEL_S, POLL_S, SlurmLauncher
from orchestrator.launchers.slurm.queue import job_statuses
from orchestrator.node.number_text import counted
from orchestrator.plan.files import step_command
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts
from orchestrator.portable.names.hostlist import expand, fold

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle

START_S = 60.0
START_POLL_S = 0.2
TERM_S = 15.0  # more than the grace period of the agents
_TASK_END = re.compile(r"^srun: error: \S+: tasks? \d", re.MULTILINE)  # such as "n1: task 0: Killed"
_STEP = ("%i", "%N", "%M", "%l", "%P", "%j")  # the name is last: it may contain the separator


def cards_of_job(plan: LaunchPlan, shown: str) -> str:
    """
    The cards that the job has on each node, such as `gpu:8`, all of which the step is to request; empty if it has none.

    Args:
        shown: the output of `scontrol --details --oneliner show job`.

    Raises:
        LaunchError: the nodes have different numbers of cards, or fewer than ranks.
    """
    counts: dict[str, dict[str, int]] = {"gpu": {}, "gcu": {}}
    for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", shown):
        for name, count in re.findall(r"(?:^|,)(gpu|gcu)(?::[^:,()]+)??:(\d+)(?=[(,]|$)", gres):
            for node in expand(nodes):
                counts[name][node] = counts[name].get(node, 0) + int(count)
    kind = next((name for name, of_nodes in counts.items() if of_nodes), None)
    if kind is None:
        return ""
    cards = {node.name: counts[kind].get(node.name, 0) for node in plan.nodes}
    short = any(cards[node.name] < len(node.ranks) for node in plan.nodes if node.accelerator in ("cuda", "gcu"))
    if short or len(set(cards.values())) > 1:
        found = ", ".join(f"{node}: {count}" for node, count in cards.items())
        most = max(len(node.ranks) for node in plan.nodes)
        raise LaunchError(
            f"Slurm job {plan.allocation} has not the same cards for the ranks of each node ({kind} {found})",
            hint=f"salloc --gres={kind}:{most} requests {most} on each node; --gpus and --gpus-per-task do not",
        )
    return f"{kind}:{min(cards.values())}"


def few_cores(plan: LaunchPlan, shown: str) -> list[str]:
    """
    The warning that the job has fewer cores than the run has ranks on a node.

    Args:
        shown: the output of `scontrol --details --oneliner show job`.
    """
    cores: dict[str, int] = {}
    for nodes, ids in re.findall(r" Nodes=(\S+) CPU_IDs=([0-9,-]+) ", shown):
        for node in expand(nodes):
            cores[node] = cores.get(node, 0) + len(expand(f"[{ids}]"))
    few = [node for node in plan.nodes if cores.get(node.name, len(node.ranks)) < len(node.ranks)]
    if not few:
        return []
    least = counted(min(cores[node.name] for node in few), "core")
    most = max(len(node.ranks) for node in few)
    remedy = f"salloc --ntasks-per-node=1 --cpus-per-task={most} requests one per rank"
    return [
        f"Slurm job {plan.allocation} has {least} on {fold(node.name for node in few)}, which its ranks share; {remedy}"
    ]


class AllocationLauncher(SlurmLauncher):
    """A SlurmLauncher for `orch submit --here`. The steps are found by their name, the run's id."""

    _process: subprocess.Popen[bytes] | None = None
    _is_cancelled = False

    def connect(self, plan: LaunchPlan) -> Facts:
        """Check that this machine can start steps, and that the job still has its nodes."""
        missing = [name for name in ("srun", "squeue", "scancel") if shutil.which(name) is None]
        if missing:
            raise LaunchError(f"no {' and no '.join(missing)} on PATH: no step can be started from this machine")
        allocation = self._allocation_status()
        if allocation is None or allocation.over or allocation.waits:
            state = "GONE" if allocation is None else allocation.state
            raise LaunchError(
                f"Slurm job {plan.allocation}, in which this shell runs, is {state}: it has no nodes",
                hint="omit --here to queue a job",
            )
        with self._host_errors():
            shown = self._host.run(["scontrol", "--details", "--oneliner", "show", "job", str(plan.allocation)])
            cards = cards_of_job(plan, shown.stdout)
            self._host.endpoint()
        return Facts(tuple(few_cores(plan, shown.stdout)), gres=cards)

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:
        """Write the files and start the steps; returns the id of the job that has the nodes."""
        self._plan = plan
        self.write(plan, bundle)
        with self._host_errors():
            self._may_be_submitted = True
            self._process = self._start_steps()
            threading.Thread(target=self._process.wait, daemon=True).start()  # reaps it, if this process lives longer
            self._wait_for_step(self._process)
        return plan.allocation

    def undo(self) -> list[str]:
        """End the processes that start the steps, then the steps."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
        return super().undo()

    def _start_steps(self) -> subprocess.Popen[bytes]:
        """Start the script that runs srun; it outlives the terminal, as long as the job does."""
        command = [str(Path(word).expanduser()) for word in step_command(self._plan)]
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )

    @property
    def _log_file(self) -> Path:
        folder = Path(self._plan.attempt_dir(self._plan.head)).expanduser()
        return folder / f"slurm-{self._plan.allocation}.log"

    def _wait_for_step(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while not self._steps():
            has_ended = process.returncode is not None
            if has_ended and self._has_begun():  # and ended before squeue listed it: its files show how
                return
            if has_ended or time.monotonic() > deadline:
                lines = self._log_file.read_text("utf-8", "replace").strip().splitlines()
                reason = "; ".join(dict.fromkeys(lines[-3:])) or f"no step in {START_S:.0f} s"
                raise LaunchError(
                    f"srun started no step in Slurm job {self._plan.allocation}: {reason}",
                    hint=f"the whole output is in {self._log_file}",
                )
            time.sleep(START_POLL_S)

    def _has_begun(self) -> bool:
        """Return whether a node has an agent, or output of setup lines, or srun names the end of a task."""
        folders = self.attempt_folders(1)
        nodes = [node for folder in folders for node in folder.endpoint.observe(folder.attempt_dir, folder.nodes)]
        has_output = any(node.agent is not None or node.log.strip() for node in nodes)
        return has_output or _TASK_END.search(self._log_file.read_text("utf-8", "replace")) is not None

    def _steps(self) -> list[list[str]] | None:
        """The running steps of the run, each with the cells of _STEP; None if Slurm does not answer."""
        job = str(self._plan.allocation)
        listed = self._host.run(["squeue", "--noheader", "--steps", "--jobs", job, "--format", "|".join(_STEP)])
        if listed.returncode != 0 and "Invalid job id" not in listed.stderr:
            return None
        rows = [line.split("|", len(_STEP) - 1) for line in listed.stdout.splitlines()]
        return [row for row in rows if row[-1] == self._plan.run_id]

    def _allocation_status(self) -> JobStatus | None:
        """The status of the job. SLURM_JOB_ID of an array task is a job id such as 123, under which squeue lists it as 120_3."""
        job = str(self._plan.allocation)
        with self._host_errors():
            listed = self._host.run(
                ["squeue", "--noheader", "--array", "--states", "all", "--jobs", job, "--format", "%A %i"]
            )
            names = dict(re.findall(r"^(\S+) (\S+)$", listed.stdout, re.MULTILINE))
            return job_statuses(self._host.run, {self._plan.run_id: names.get(job, job)})[self._plan.run_id]

    def _query_job(self, job: str | None) -> JobStatus | None:  # the plan has the id
        """RUNNING while there is a step of the run; then the state of the job if that is over, else CANCELLED or ENDED."""
        steps, allocation = self._steps(), str(self._plan.allocation)
        if steps is None:
            return JobStatus(SILENT, "squeue does not list the steps", explanation="Slurm is queried until it answers")
        if steps:
            _, nodes, elapsed, limit, partition, name = steps[-1]
            return JobStatus(
                "RUNNING",
                job=allocation,
                name=name,
                run_id=self._plan.run_id,
                partition=partition,
                nodes=nodes,
                node_count=str(self._plan.node_count),
                elapsed=elapsed,
                limit=limit,
            )
        status = self._allocation_status()
        if status is not None and (status.over or status.state == SILENT):
            return status
        state = "CANCELLED" if self._is_cancelled else "ENDED"
        reason = "the run's step; the job itself keeps its nodes"
        return JobStatus(state, reason, over=True, job=allocation, run_id=self._plan.run_id)

    def _cancel(self, job: str | None, deadline: float) -> list[str]:  # the plan has the id
        """End the steps of the run, first with SIGTERM; the job of the user keeps its nodes."""
        self._is_cancelled = True
        until_kill = min(time.monotonic() + TERM_S, deadline - CANCEL_S / 2)
        signalled = set[str]()
        while (steps := self._steps()) is None or steps:
            if time.monotonic() > deadline:
                names = ", ".join(step[0] for step in steps or ())
                return [
                    f"steps {names} of Slurm job {self._plan.allocation} have not ended"
                    if names
                    else "squeue does not answer"
                ]
            for step in (step[0] for step in steps or ()):
                if time.monotonic() > until_kill:
                    self._host.run(["scancel", step])
                elif step not in signalled:
                    signalled.add(step)
                    self._host.run(["scancel", "--signal=TERM", step])
            time.sleep(POLL_S)
        return []
