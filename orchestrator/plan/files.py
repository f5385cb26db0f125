"""From a LaunchPlan to the files that each node needs, and where they lie. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.plan import sbatch
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.plan.shell import render

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan, NodePlan


# As -m trainer, but the working folder comes after the bundle: a module of the user's may be called trainer, too.
TRAINER_ON_CODE = (
    "import sys; sys.path[:2] = sys.path[1::-1]; import runpy; runpy.run_module('trainer', {}, '__main__', True)"
)


SITE = "trainer/scripts/site"  # below the bundle; what makes a script of the user's ready for its node (decision 012)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that the launch writes on a node; `path` may start with "~/", the home of the node's user."""

    path: str
    text: str
    mode: int = 0o600


def job(plan: LaunchPlan) -> dict[str, Any]:
    """job.json, what every node's agent reads; the same on all nodes that share a workdir."""
    head = plan.head
    counts = [len(node.ranks) for node in plan.nodes[: plan.node_count]]
    rules = (
        {name: plan.slurm[name] for name in ("requeue", "max_retries", "warn_s")} if plan.launcher == "slurm" else {}
    )
    if rules and not plan.slurm.get("shared", True):
        rules["shared"] = False
    is_open = plan.by_count or plan.spare_count > 0  # which nodes run is not known before
    return {
        "version": 1,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "run_dir": plan.run_dir(head),
        "bundle_dir": plan.bundle_dir(head),
        "nodes": None if is_open else [node.name for node in plan.nodes],
        "addresses": [] if is_open else [node.address for node in plan.nodes],
        "ranks": counts,
        "program": _program(plan),
        "grace_s": GRACE_S,
        "orphan_timeout_s": plan.orphan_timeout_s,
        "isolation_timeout_s": plan.isolation_timeout_s,
        **({"slurm": {**rules, "spares": [node.name for node in plan.nodes if node.is_spare]}} if rules else {}),
    }


def _program(plan: LaunchPlan) -> dict[str, Any]:
    program = plan.program
    if program.kind == "trainer":
        config = ["--config", f"{plan.run_dir(plan.head)}/config.json"] if plan.config is not None else []
        start = ["-m", "trainer"] if program.cwd is None else ["-c", TRAINER_ON_CODE]
        device = [f"device={plan.device}"] if plan.device is not None else []
        return {
            "python": True,
            "args": ["-u", *start, *config, *device, *program.args],
            "pythonpath": "",
            "cwd": program.cwd,
        }
    python = program.kind == "python"
    args = ["-u", *program.args] if python else list(program.args)
    return {"python": python, "args": args, "pythonpath": SITE if program.is_prepared else None, "cwd": program.cwd}


def node_files(plan: LaunchPlan) -> dict[str, list[PlannedFile]]:
    """Node name -> the files it needs, in the order they are written; under Slurm the head stands for all nodes."""
    shared = {node.workdir: _shared_files(plan, node) for node in {node.workdir: node for node in plan.nodes}.values()}
    if plan.launcher == "slurm":
        scripts = sbatch.slurm_scripts(plan)
        files = [PlannedFile(f"{plan.attempt_dir(plan.head)}/{name}", text) for name, text in scripts.items()]
        return {plan.head.name: [*shared[plan.head.workdir], *files]}
    return {
        node.name: [
            *shared[node.workdir],
            PlannedFile(f"{plan.node_dir(node)}/node.sh", node_script(plan, node)),
        ]
        for node in plan.nodes
    }


def _shared_files(plan: LaunchPlan, node: NodePlan) -> list[PlannedFile]:
    """What is the same on all nodes with the workdir of this one."""
    text = job_text(job(plan) | {"run_dir": plan.run_dir(node), "bundle_dir": plan.bundle_dir(node)})
    files = [PlannedFile(f"{plan.attempt_dir(node)}/job.json", text)]
    if plan.config is not None:
        files.append(PlannedFile(f"{plan.run_dir(node)}/config.json", plan.config))
    return files


def sbatch_path(plan: LaunchPlan) -> str:
    """Where the batch script of the attempt lies, on the file system that the nodes share."""
    return f"{plan.attempt_dir(plan.head)}/submit.sbatch"


def submission_path(plan: LaunchPlan) -> str:
    """What sbatch answered, where it was run over a connection that may be lost meanwhile."""
    return f"{plan.attempt_dir(plan.head)}/submission.json"


def start_command(plan: LaunchPlan, node: NodePlan, rendezvous: str) -> list[str]:
    """What starts the agent on a node reached directly, once the head has found the rendezvous."""
    return ["/bin/sh", f"{plan.node_dir(node)}/node.sh", "--rendezvous", rendezvous]


def node_script(plan: LaunchPlan, node: NodePlan) -> str:
    """node.sh of one node that orch reaches itself."""
    return render(
        "node.sh.j2",
        run_id=plan.run_id,
        attempt=plan.attempt,
        node=node.name,
        node_rank=node.node_rank,
        env=node.env,
        python=node.python,
        agent=f"{plan.bundle_dir(node)}/orchestrator/node/__main__.py",
        job=f"{plan.attempt_dir(node)}/job.json",
    )


def job_text(job: Mapping[str, Any]) -> str:
    """job.json as text, a line a key."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in job.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
