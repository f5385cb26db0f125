"""The job in which orch runs, with recorded output of squeue."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.slurm.allocation import AllocationLauncher
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.make import make_plan
from orchestrator.run import Allocation, Program, Request


class Site(ThisMachine):
    """Slurm with the tasks 120_2 and 120_3 of an array, whose job ids are 121 and 120, and without steps."""

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Answer squeue; no other command knows a job."""
        rows = []
        for task, raw in (("120_2", "121"), ("120_3", "120")):
            status = f"{task}|RUNNING|None|n0|1|0:01|1:00|debug|N/A|/home/u|mine"
            rows.append(f"{raw} {task}" if argv[-1] == "%A %i" else status)
        listed = "" if argv[0] != "squeue" or "--steps" in argv else "\n".join(rows) + "\n"
        return subprocess.CompletedProcess(argv, 0, listed, "")


def test_array_task_in_which_orch_runs_is_found_by_its_job_id() -> None:
    for job, task in (("120", "120_3"), ("121", "120_2"), ("120_2", "120_2")):
        request = Request("slurm", Program("executable", ("true",)), allocation=Allocation(job, ("n0",)))
        inventory = Inventory(name="demo", nodes=(Node(name="n0"),))
        plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home="/home/u")
        status = AllocationLauncher(plan, Site(plan.head))._allocation_status()  # noqa: SLF001  connect() needs srun
        assert status is not None
        assert (status.state, status.job) == ("RUNNING", task)
