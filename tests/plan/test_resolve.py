"""The plan by the facts of the nodes and the scheduler."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.run import Program, Request


def _plan(launcher: str = "ssh", *, until_head: bool = False, **slurm: Any) -> LaunchPlan:
    nodes = tuple(Node(name=name, devices=8, tags=("spare",) * (name == "s0")) for name in ("n0", "n1", "s0"))
    inventory = Inventory(name="here", nodes=nodes, slurm=SlurmOptions.model_validate(slurm))
    program = Program("executable", ("true",), per_node=until_head, until_head=until_head)
    request = Request("slurm" if launcher == "slurm" else "ssh", program, max_retries=2)
    return make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b", home="/home/u")


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_facts_that_say_nothing_change_nothing(launcher: str) -> None:
    assert resolve(_plan(launcher), Facts()) == _plan(launcher)


def test_facts_over_ssh_arrive_in_parts() -> None:
    plan = resolve(_plan(), Facts(("n0: much code",), is_shared=True))
    plan = resolve(plan, Facts(defaults={"n0": {"NCCL_IB_HCA": "mlx5_0"}}))
    plan = resolve(plan, Facts(("the spare node s0 is left out: it is full",), unusable_spares={"s0"}))
    assert (plan.is_shared, plan.spares) == (True, ())
    assert [dict(node.defaults) for node in plan.nodes] == [{"NCCL_IB_HCA": "mlx5_0"}, {}]
    assert plan.warnings[-2:] == ("n0: much code", "the spare node s0 is left out: it is full")


@pytest.mark.parametrize(
    ("slurm", "limit_s", "warn_s"),
    [({}, 240.0, 60), ({}, math.inf, 90), ({"warn_s": 45}, 240.0, 45), ({"time": "01:00:00"}, 240.0, 90)],
)
def test_job_is_warned_before_the_limit_that_the_cluster_sets(
    slurm: dict[str, Any], limit_s: float, warn_s: int
) -> None:
    assert resolve(_plan("slurm", **slurm), Facts(time_limit_s=limit_s)).slurm["warn_s"] == warn_s


def test_job_without_cores_for_its_gpus_requests_one_per_rank() -> None:
    plan = resolve(_plan("slurm", gres="gpu"), Facts(lacks_cores=True))
    assert plan.slurm["cpus"] == 8
    assert plan.warnings[-1].startswith("Slurm has no DefCpuPerGPU for this job, so it requests 8 cores per node")


@pytest.mark.parametrize(("gres", "expected"), [("gpu:8", "gpu:8"), ("", None), (None, "gpu:4")])
def test_step_requests_the_cards_of_its_job(gres: str | None, expected: str | None) -> None:
    assert resolve(_plan("slurm", gres="gpu:4"), Facts(gres=gres)).slurm["gres"] == expected


def test_unshared_workdir_excludes_what_needs_files_of_other_nodes() -> None:
    plan = resolve(_plan("slurm"), Facts(is_shared=False))
    assert (plan.slurm["shared"], plan.slurm["requeue"], plan.max_retries) == (False, "never", 0)
    assert not plan.is_checked_in_job
    assert resolve(_plan("slurm"), Facts(is_shared=True)) == _plan("slurm")
    with pytest.raises(UsageError, match="--until-head needs a workdir that all nodes share"):
        resolve(_plan("slurm", until_head=True), Facts(is_shared=False))


def test_plan_is_compared_by_value() -> None:
    """A launch records its plan again if a fact has changed it."""
    assert resolve(_plan(), Facts(defaults={})) == _plan()
    assert resolve(_plan(), Facts(is_shared=True)) == replace(_plan(), is_shared=True)
