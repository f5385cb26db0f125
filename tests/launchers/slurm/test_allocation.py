"""The job in which orch runs, with recorded output of squeue."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from orchestrator.errors import LaunchError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.launchers.slurm.allocation import AllocationLauncher, cards_of_job, few_cores
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.plan.sbatch import step_script
from orchestrator.run import Allocation, Program, Request


class Site(ThisMachine):
    """Slurm with the tasks 120_2 and 120_3 of an array, whose job ids are 121 and 120, and without steps."""

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Answer squeue; no other command knows a job."""
        rows = []
        for task, raw in (("120_2", "121"), ("120_3", "120")):
            status = f"{task}|RUNNING|None|n0|1|0:01|1:00|debug|N/A|n0|/home/u|mine"
            rows.append(f"{raw} {task}" if argv[-1] == "%A %i" else status)
        listed = "" if argv[0] != "squeue" or "--steps" in argv else "\n".join(rows) + "\n"
        return subprocess.CompletedProcess(argv, 0, listed, "")


@pytest.mark.parametrize(
    ("log", "has_begun"),
    [
        ("srun: error: n0: task 0: Exited with exit code 1\n", True),
        ("slurmstepd-n0: error: *** STEP 21.5 ON n0 CANCELLED ***\nsrun: error: n0: tasks 0-1: Killed\n", True),
        ("srun: error: Unable to create step for job 21: Requested nodes are busy\n", False),
    ],
)
def test_step_that_ends_before_squeue_lists_it_has_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: str, *, has_begun: bool
) -> None:
    """Its setup lines may fail without a word, so no agent and no output show it."""
    plan = _plan("21", home=str(tmp_path))
    folder = Path(plan.attempt_dir(plan.head)).expanduser()
    folder.mkdir(parents=True)
    (folder / "slurm-21.log").write_text(log)
    monkeypatch.setattr(AllocationLauncher, "attempt_folders", lambda *_: ())  # without an agent and without output
    process = subprocess.Popen(["true"])
    process.wait()
    launcher = AllocationLauncher(plan, Site(plan.head))
    with (
        nullcontext()
        if has_begun
        else pytest.raises(LaunchError, match="srun started no step in Slurm job 21: srun: error")
    ):
        launcher._wait_for_step(process)  # connect() needs srun


def _plan(job: str, home: str = "/home/u") -> LaunchPlan:
    request = Request("slurm", Program("executable", ("true",)), allocation=Allocation(job, ("n0",)))
    inventory = Inventory(name="demo", nodes=(Node(name="n0"),))
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home=home)


def test_array_task_in_which_orch_runs_is_found_by_its_job_id() -> None:
    for job, task in (("120", "120_3"), ("121", "120_2"), ("120_2", "120_2")):
        plan = _plan(job)
        status = AllocationLauncher(plan, Site(plan.head))._allocation_status()  # connect() needs srun
        assert status is not None
        assert (status.state, status.job) == ("RUNNING", task)


# Lines of `scontrol --details --oneliner show job`, Slurm 22.05 with GresTypes=gpu, after salloc --gpus=16, --gpus-per-task=1, and others
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (" Nodes=n[0-1] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7) MinCPUsNode=1", "--gres=gpu:8"),
        (" Nodes=n0 CPU_IDs=0 Mem=0 GRES=gpu:h800:8(IDX:0-7) Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a:4(IDX:0-3),gpu:b:4(IDX:0-3)", "--gres=gpu:8"),
        (" Nodes=n[0-1] CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1", ""),
        (" Nodes=n0 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)", "gpu n0: 1, n1: 8"),
        (" Nodes=n[0-1] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) MinCPUsNode=1", "gpu n0: 1, n1: 1"),
    ],
)  # fmt: skip
def test_step_requests_the_cards_of_each_node_or_is_refused(nodes: str, expected: str) -> None:
    request = Request("slurm", Program("executable", ("true",)), allocation=Allocation("7", ("n0", "n1")))
    many = tuple(Node(name=name, accelerator="cuda", devices=8) for name in ("n0", "n1"))
    inventory = Inventory(name="demo", nodes=many, slurm=SlurmOptions(gres="gpu:4"))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home="/home/u")
    if expected.startswith("gpu"):
        with pytest.raises(LaunchError, match=expected) as caught:
            cards_of_job(plan, nodes)
        assert "salloc --gres=gpu:8" in str(caught.value.hint)
        return
    script = step_script(resolve(plan, Facts(gres=cards_of_job(plan, nodes))))
    assert ("--gres=gpu" in script) == bool(expected)
    assert expected in script


@pytest.mark.parametrize(
    ("nodes", "cores"),
    [
        (" Nodes=n[0-1] CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1", "1 core on n[0-1]"),
        (" Nodes=n0 CPU_IDs=0-7 Mem=0 GRES= Nodes=n1 CPU_IDs=0-1,4 Mem=0 GRES= MinCPUsNode=1", "3 cores on n1"),
        (" Nodes=n[0-1] CPU_IDs=0-5,8-9 Mem=0 GRES= MinCPUsNode=1", None),
        (" of a version that prints it in another form", None),
    ],
)
def test_job_with_fewer_cores_than_ranks_is_warned_of(nodes: str, cores: str | None) -> None:
    request = Request("slurm", Program("executable", ("true",)), allocation=Allocation("7", ("n0", "n1")))
    inventory = Inventory(name="demo", nodes=tuple(Node(name=name, devices=8) for name in ("n0", "n1")))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home="/home/u")
    remedy = "which its ranks share; salloc --ntasks-per-node=1 --cpus-per-task=8 requests one per rank"
    assert few_cores(plan, nodes) == ([] if cores is None else [f"Slurm job 7 has {cores}, {remedy}"])
