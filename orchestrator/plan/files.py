"""From a LaunchPlan to the files that each node needs, and their paths. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.plan import sbatch
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.plan.shell import render

if TYPE_CHECKING:
    from orchestrator.node.protocol.agents import AgentStart
    from orchestrator.plan.plan import LaunchPlan, NodePlan


# Like -m trainer, except that the working folder comes after the bundle: a user's module may also be called trainer.
TRAINER_BESIDE_CODE = (
    "import sys; sys.path[:2] = sys.path[1::-1]; import runpy; runpy.run_module('trainer', {}, '__main__', True)"
)


CHECK_REQUEST = "check.json"
SITE_DIR = "trainer/scripts/site"  # in the bundle; its sitecustomize prepares a user's script (decision 012)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that the launch writes on a node; `path` may start with "~/", the home of the node's user."""

    path: str
    text: str
    mode: int = 0o600


def job_json(plan: LaunchPlan) -> dict[str, Any]:
    """The content of job.json, which every node's agent reads; equal on all nodes that share a workdir."""
    head = plan.head
    rank_counts = [len(node.ranks) for node in plan.nodes[: plan.node_count]]
    slurm: dict[str, Any] = {}
    if plan.launcher == "slurm":
        slurm = {"requeue": plan.slurm["requeue"], "max_retries": plan.max_retries, "warn_s": plan.slurm["warn_s"]}
        slurm |= {"at_any_step": True} if plan.at_any_step else {}
        slurm |= {} if plan.slurm.get("shared", True) else {"shared": False}
    chosen_by_slurm = plan.by_count or plan.spare_count > 0
    spares = [node.name for node in plan.nodes if node.is_spare]
    return {
        "version": 1,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "run_dir": plan.run_dir(head),
        "bundle_dir": plan.bundle_dir(head),
        "nodes": None if chosen_by_slurm else [node.name for node in plan.nodes],
        "addresses": [] if chosen_by_slurm else [node.address for node in plan.nodes],
        "ranks": rank_counts,
        "program": _program(plan),
        **({"commit": plan.commit} if plan.commit else {}),
        **({"keep": list(plan.keep), "kept_dir": plan.kept_dir(head)} if plan.keep else {}),
        "grace_s": GRACE_S,
        "orphan_timeout_s": plan.orphan_timeout_s,
        "isolation_timeout_s": plan.isolation_timeout_s,
        **({"accelerator": plan.accelerator} if plan.accelerator != "auto" else {}),
        **({"network": plan.network} if plan.network != "auto" else {}),
        **({"bind": plan.bind} if plan.bind != "auto" else {}),
        **({"restarted": plan.restarted} if plan.restarted else {}),
        **({"slurm": {**slurm, "spares": spares}} if slurm else {}),
    }


def _program(plan: LaunchPlan) -> dict[str, Any]:
    program = plan.program
    if program.kind == "trainer":
        config = ["--config", f"{plan.run_dir(plan.head)}/config.json"] if plan.config is not None else []
        start = ["-m", program.module] if program.cwd is None else ["-c", TRAINER_BESIDE_CODE]
        device = [f"device={plan.device}"] if plan.device is not None else []
        args = ["-u", *start, *config, *device, *program.args]
        return {"python": True, "args": args, "pythonpath": "", "cwd": program.cwd}
    python, site = program.kind == "python", SITE_DIR if program.is_prepared else None
    args = ["-u", *program.args] if python else list(program.args)
    fields = {"python": python, "args": args, "pythonpath": site, "cwd": program.cwd}
    switches = {"per_node": program.per_node, "until_head": program.until_head}
    return fields | {name: True for name, is_on in switches.items() if is_on}


def node_files(plan: LaunchPlan) -> dict[str, list[PlannedFile]]:
    """Node name -> the files it needs, in the order of writing; under Slurm, only the head has files, for all nodes."""
    shared = {node.workdir: shared_files(plan, node) for node in {node.workdir: node for node in plan.nodes}.values()}
    if plan.launcher == "slurm":
        scripts = sbatch.slurm_scripts(plan)
        files = [PlannedFile(f"{plan.attempt_dir(plan.head)}/{name}", text) for name, text in scripts.items()]
        if plan.is_checked_in_job:
            files.append(PlannedFile(f"{plan.attempt_dir(plan.head)}/{CHECK_REQUEST}", check_request(plan)))
        return {plan.head.name: [*shared[plan.head.workdir], *files]}
    return {node.name: [*shared[node.workdir], node_script_file(plan, node)] for node in plan.nodes}


def node_script_file(plan: LaunchPlan, node: NodePlan) -> PlannedFile:
    """The script of a node reached directly: the only file with its environment."""
    return PlannedFile(f"{plan.node_dir(node)}/node.sh", node_script(plan, node))


def shared_files(plan: LaunchPlan, node: NodePlan) -> list[PlannedFile]:
    """The files that are equal on all nodes with the workdir of this node."""
    folders = {"run_dir": plan.run_dir(node), "bundle_dir": plan.bundle_dir(node)}
    folders |= {"kept_dir": plan.kept_dir(node)} if plan.keep else {}
    text = job_text(job_json(plan) | folders)
    files = [PlannedFile(f"{plan.attempt_dir(node)}/job.json", text)]
    if plan.config is not None:
        files.append(PlannedFile(f"{plan.run_dir(node)}/config.json", plan.config))
    setup = plan.setup_file(node)
    if setup is not None:
        by_slurm = plan.launcher == "slurm"
        script = render("setup.sh.j2", run_id=plan.run_id, setup=plan.setup, by_slurm=by_slurm)
        files.append(PlannedFile(setup, script))
    return files


def _editable(plan: LaunchPlan) -> dict[str, str] | None:
    """The folders by which the check finds modules that ranks import from a working folder; None if no code is sent."""
    program = plan.program
    if not plan.code_root or program.cwd is None:
        return None
    python_path = plan.head.env.get("PYTHONPATH", "") if "PYTHONPATH" not in plan.head.secrets else ""
    return {"root": plan.code_root, "cwd": program.cwd, "start": program.import_folder, "python_path": python_path}


def check_request(plan: LaunchPlan) -> str:
    """
    The content of the file by which the batch script checks the nodes; it has the names of variables without values.

    `usual` is the part of the launch on a node that is not in `nodes`, where Slurm has chosen one that the inventory does not
    have; `nodes` has what differs from that. An address is the name by default.
    """
    usual = _check_fields(plan.head)
    value = {
        "workdir": plan.head.workdir,
        "out": plan.checkpoint_folder,
        "code": plan.program.folder_on_nodes,
        "editable": _editable(plan),
        "skipped": list(plan.skipped),
        "python_may_differ": not plan.program.runs_python,
        "usual": usual,
        "nodes": {
            node.name: {
                **({"address": node.address} if node.address != node.name else {}),
                **{name: value for name, value in _check_fields(node).items() if value != usual[name]},
            }
            for node in plan.nodes
        },
    }
    return job_text(value)


def _check_fields(node: NodePlan) -> dict[str, Any]:
    kinds = {"accelerator": node.accelerator, "network": node.network}
    names = {"env": sorted(node.env), "private": sorted(node.secrets)}
    return {"ranks": len(node.ranks), **kinds, **names}


def sbatch_path(plan: LaunchPlan) -> str:
    """The path of the attempt's batch script, on the file system that the nodes share."""
    return f"{plan.attempt_dir(plan.head)}/submit.sbatch"


def sbatch_command(plan: LaunchPlan) -> list[str]:
    """The command that submits the batch script. The job's name is on it: SBATCH_JOB_NAME would win over the #SBATCH line."""
    folder = plan.attempt_dir(plan.head)
    return ["sbatch", "--parsable", f"--job-name={plan.job_name}", "--chdir", folder, sbatch_path(plan)]


def step_command(plan: LaunchPlan) -> list[str]:
    """The command that starts the run as a step in an existing Slurm job."""
    return ["/bin/bash", f"{plan.attempt_dir(plan.head)}/step.sh"]


def submission_path(plan: LaunchPlan) -> str:
    """The path of the file with sbatch's answer, kept because the connection to the login node may be lost meanwhile."""
    return f"{plan.attempt_dir(plan.head)}/submission.json"


def start_command(plan: LaunchPlan, node: NodePlan, rendezvous: str) -> list[str]:
    """The command that starts the agent on a node reached directly; `rendezvous` comes from the head."""
    return ["/bin/sh", f"{plan.node_dir(node)}/node.sh", "--rendezvous", rendezvous]


def agent_start(plan: LaunchPlan, node: NodePlan, rendezvous: str) -> AgentStart | None:
    """The values of node.sh, with which the endpoint starts the agent itself; None if setup lines need a shell."""
    if plan.setup:
        return None
    return {
        "python": node.python,
        "python_folder": node.python_folder,
        "env": dict(node.env),
        "defaults": dict(node.defaults),
        "bundle": plan.bundle_dir(node),
        "job": f"{plan.attempt_dir(node)}/job.json",
        "node": node.name,
        "node_rank": node.node_rank,
        "rendezvous": rendezvous,
    }


def node_script(plan: LaunchPlan, node: NodePlan) -> str:
    """node.sh of one node reached directly."""
    return render(
        "node.sh.j2",
        run_id=plan.run_id,
        attempt=plan.attempt,
        node=node.name,
        node_rank=node.node_rank,
        env=node.env,
        defaults=node.defaults,
        setup=plan.setup_file(node),
        is_login_shell=plan.transport == "ssh",  # else the user's shell has set the environment
        python=node.python,
        python_folder=node.python_folder,
        agent=f"{plan.bundle_dir(node)}/orchestrator/node/__main__.py",
        job=f"{plan.attempt_dir(node)}/job.json",
    )


def job_text(job: Mapping[str, Any]) -> str:
    """The text of job.json, one line per key."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in job.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
