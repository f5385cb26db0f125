"""The output of --dry-run: every file and command of a plan as a shell script to read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.code.report import CodeReport
from orchestrator.endpoint.access import container_of
from orchestrator.inventory.hooks import Hook
from orchestrator.node.number_text import counted
from orchestrator.plan.files import PlannedFile, node_files, sbatch_command, start_command, step_command
from orchestrator.plan.plan import LaunchPlan, NodePlan, redacted
from orchestrator.plan.shell import shell_path


def dry_run_text(plan: LaunchPlan, report: CodeReport | None = None) -> str:
    """Every file and command in order, and the report about the code; values of secret variables are redacted, equal files are written once."""
    plan = redacted(plan)
    files = node_files(plan)
    spares = f" and {plan.spare_count} spare" if plan.spare_count else ""
    size = f"{counted(plan.node_count, 'node')}{spares}, {counted(plan.world_size, 'rank')}"
    size += ", which the program starts" if plan.program.per_node else ""
    header = (
        f"#!/bin/bash\n# Run {plan.run_id}: {size}, bundle {plan.bundle}. Nothing was started.\n"
        "# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.\n"
        "set -eu\numask 077\n"
    )
    header += "".join(f"# {line}\n" for line in (report.in_full() if report else ()))
    if plan.launcher == "slurm":
        return f"{header}\n{_slurm(plan, files[plan.head.name])}"
    header += "".join(f"# Hook on {', '.join(hook['on'])}: {Hook.model_validate(hook)}\n" for hook in plan.hooks)
    first_node: dict[PlannedFile, str] = {}
    return "\n".join([header, *(_direct(plan, node, files[node.name], first_node) for node in plan.nodes)])


def _slurm(plan: LaunchPlan, files: list[PlannedFile]) -> str:
    head = plan.head
    login = plan.slurm["login"]
    host = (
        f"login node {login} (ssh {_target(replace(head, address=login))}, unless orch runs there)"
        if login
        else "this machine"
    )
    title = f"# --- on {host}, whose {head.workdir} the nodes share; the bundle goes to {plan.bundle_dir(head)}\n"
    command = sbatch_command(plan) if plan.allocation is None else step_command(plan)
    return "".join([title, *map(_file, files), _command(command)])


def _direct(plan: LaunchPlan, node: NodePlan, files: list[PlannedFile], first_node: dict[PlannedFile, str]) -> str:
    """The files and the command of one node; `first_node` maps each file written so far to its first node."""
    host = "this machine" if plan.transport == "local" else f"ssh {_target(node)}"
    if container := container_of(node):
        host += f", in the {container}"
    parts = [f"# --- node {node.name} ({host}); the bundle goes to {plan.bundle_dir(node)}\n"]
    for file in files:
        first = first_node.setdefault(file, node.name)
        parts.append(_file(file) if first == node.name else f"# {file.path}: the same as on {first}\n")
    if node.node_rank == 0:
        parts.append("# the head: orch first chooses an address and a free port here, and keeps the port bound\n")
    command = start_command(plan, node, "ADDRESS PORT HOST_ID of the head")
    return "".join([*parts, _command(command)])


def _command(argv: Sequence[str]) -> str:
    return " ".join(map(shell_path, argv)) + "\n"


def _target(node: NodePlan) -> str:
    user = f"{node.user}@" if node.user else ""
    port = f" -p {node.port}" if node.port else ""
    return f"{user}{node.address}{port}"


def _file(file: PlannedFile) -> str:
    path = shell_path(file.path)
    folder = shell_path(file.path.rpartition("/")[0])
    end = "END_OF_FILE"
    while end in file.text:
        end += "_"
    text = file.text if file.text.endswith("\n") else file.text + "\n"
    return f"mkdir -p {folder}\ncat >{path} <<'{end}'\n{text}{end}\n"
