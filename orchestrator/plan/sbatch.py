"""From a LaunchPlan to the scripts of a Slurm job. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.plan.shell import jinja_environment, refuse_control, render
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.portable.names.slurm_options import OPTION_OF, has_count, option_value, requests_gpus

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan


def slurm_scripts(plan: LaunchPlan) -> dict[str, str]:
    """File name -> script of a Slurm job, or of a step in an existing job."""
    scripts = {"node.sh": slurm_node_script(plan)}
    return scripts | (
        {"submit.sbatch": sbatch_script(plan)} if plan.allocation is None else {"step.sh": step_script(plan)}
    )


def step_script(plan: LaunchPlan) -> str:
    """The script that starts the run as a step in an existing job."""
    gres = _sbatch_value(plan, "gres")
    return render(
        "slurm_step.sh.j2",
        run_id=plan.run_id,
        allocation=plan.allocation,
        folder=plan.attempt_dir(plan.head),
        head=plan.head.name,
        nodes=fold(node.name for node in plan.nodes),
        node_count=plan.node_count,
        srun_options=[*([f"--gres={gres}"] if gres else []), *_srun_options(plan)],
    )


def slurm_node_script(plan: LaunchPlan) -> str:
    """node.sh of a Slurm job: one script for all nodes, which selects the node's values by SLURMD_NODENAME."""
    head, container = plan.head, plan.slurm["container"]
    in_apptainer = container is not None and container["runtime"] == "apptainer"
    image_python = (container or {}).get("python") or ""
    common = dict(set.intersection(*(set(node.env.items()) for node in plan.nodes)))
    node_values = [
        {
            "name": node.name,
            "address": node.address if node.address != node.name else None,
            "env": {name: value for name, value in node.env.items() if name not in common},
        }
        for node in plan.nodes
    ]
    return render(
        "slurm_node.sh.j2",
        run_id=plan.run_id,
        common_env={name: value for name, value in head.env.items() if name in common},
        nodes=[node for node in node_values if node["env"] or node["address"]],
        setup=plan.setup_file(head),
        spares=plan.spare_count,
        image=container["image"] if in_apptainer else None,
        mounts=_mounts(plan) if in_apptainer else [],
        python=head.python,
        python_folder=head.python_folder,
        image_python=image_python,
        image_python_folder=posixpath.dirname(image_python),
        agent=f"{plan.bundle_dir(head)}/orchestrator/node/__main__.py",
        check=f"{plan.bundle_dir(head)}/orchestrator/portable/job_check/__main__.py"
        if plan.is_checked_in_job
        else None,
    )


def sbatch_script(plan: LaunchPlan) -> str:
    """The batch script of a Slurm job; UsageError if the user's template cannot be rendered, or orch could not follow its job."""
    values = {
        "run_id": plan.run_id,
        "options": sbatch_options(plan),
        "srun_options": _srun_options(plan),
        "run_dir": plan.run_dir(plan.head),
        "runs_dir": plan.runs_dir(plan.head),
        "sweep_runs": plan.sweep.runs if plan.sweep else (),
        "node_count": plan.node_count,
        "spare_count": plan.spare_count,
        "is_checked": plan.is_checked_in_job,
    }
    if plan.slurm["template"] is None:
        return render("slurm.sbatch.j2", **values)
    from orchestrator.plan import custom_template  # only if there is a template

    return custom_template.render_custom(Path(plan.slurm["template"]).expanduser(), jinja_environment(), values)


def _srun_options(plan: LaunchPlan) -> list[str]:
    """The options for Pyxis; all other options of srun are in the template."""
    container = plan.slurm["container"]
    if container is None or container["runtime"] != "pyxis":
        return []
    return [f"--container-image={container['image']}", f"--container-mounts={','.join(_mounts(plan))}"]


def _mounts(plan: LaunchPlan) -> list[str]:
    """The mounts of the container as outside:inside: the workdir, which holds all files of orch, and the inventory's mounts."""
    mounts = [plan.head.workdir, *plan.slurm["container"]["mounts"]]
    return [mount if ":" in mount else f"{mount}:{mount}" for mount in mounts]


def sbatch_options(plan: LaunchPlan) -> list[str]:
    """The #SBATCH options in order, without those that are unset. To add an option, add a row to OPTION_OF."""
    slurm, sweep = plan.slurm, plan.sweep
    at_once = f"%{sweep.at_once}" if sweep and sweep.at_once else ""
    options = [
        f"--job-name={plan.job_name}",
        *([f"--array=0-{len(sweep.runs) - 1}{at_once}"] if sweep else []),
        f"--nodes={plan.node_count + plan.spare_count}",
        *(["--no-kill"] if plan.spare_count else []),  # else Slurm ends the job when the first node fails
        "--ntasks-per-node=1",
        # in the attempt's folder, where sbatch runs, because Slurm expands no ~; a task of an array opens its run's log itself
        "--output=/dev/null" if sweep else "--output=slurm-%j.log",
        "--open-mode=append",
        f"--signal=USR2@{slurm['warn_s']}",  # not USR1, which NCCL uses
        "--requeue" if slurm["requeue"] == "auto" else "--no-requeue",
    ]
    if not plan.by_count:
        options.append(f"--nodelist={fold(node.name for node in plan.nodes)}")
    values = {option: _sbatch_value(plan, field) for field, option in OPTION_OF.items()}
    options += [
        f"--{option}={value}" if value else f"--{option}" for option, value in values.items() if value is not None
    ]
    return [_sbatch_quoted(option) for option in (*options, *slurm["options"])]


def needs_cpus(plan: LaunchPlan) -> bool:
    """Return whether nothing in the plan decides the number of cores per node."""
    is_exclusive = option_value(plan.slurm, "exclusive") in {"", "true"}
    is_set = any(option.startswith("--cpus-per-") for option in plan.slurm["options"])
    return plan.slurm["cpus"] is None and not is_exclusive and not is_set


def _sbatch_value(plan: LaunchPlan, field: str) -> str | None:
    """The value of the field's option for sbatch: empty for an option without a value, None to leave the choice to Slurm."""
    value, ranks = plan.slurm[field], max(len(node.ranks) for node in plan.nodes)
    if field == "cpus" and value is None:
        # with GPUs, the cluster decides, or the launcher where it does not; otherwise the one task per node would get one core
        return str(ranks) if needs_cpus(plan) and not requests_gpus(plan.slurm) else None
    if value is None or (field, value) == ("exclusive", "false"):
        return None
    if field == "exclusive" and value == "true":
        return ""
    if field == "gres":
        return ",".join(gres if has_count(gres) else f"{gres}:{ranks}" for gres in value.split(","))
    return fold(expand(value)) if field == "exclude" else str(value)


def _sbatch_quoted(option: str) -> str:
    """Quote an option for an #SBATCH line; refuse control characters, since a newline could add directives."""
    refuse_control(option, "slurm option")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]~-]+", option):
        return option
    return shlex.quote(option.replace("\\", "\\\\"))  # sbatch reads a backslash as an escape within quotes, too
