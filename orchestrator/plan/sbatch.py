"""From a LaunchPlan to the scripts of a Slurm job. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.names.hostlist import expand, fold
from orchestrator.names.slurm_options import OPTION_OF, option_value
from orchestrator.plan.shell import jinja_environment, refuse_control, render

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan


def slurm_scripts(plan: LaunchPlan) -> dict[str, str]:
    """The scripts of a Slurm job by their names; setup.sh of the first attempt serves the later ones as well."""
    lines = plan.slurm["setup"]
    setup = {"setup.sh": render("slurm_setup.sh.j2", run_id=plan.run_id, setup=lines)} if lines else {}
    return {"node.sh": slurm_node_script(plan), **setup, "submit.sbatch": sbatch_script(plan)}


def slurm_node_script(plan: LaunchPlan) -> str:
    """node.sh of a Slurm job: one for all nodes, which looks its own part up by SLURMD_NODENAME."""
    head, container = plan.head, plan.slurm["container"]
    in_apptainer = container is not None and container["runtime"] == "apptainer"
    common = dict(set.intersection(*(set(node.env.items()) for node in plan.nodes)))
    own = [
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
        nodes=[node for node in own if node["env"] or node["address"]],
        setup=f"{plan.attempt_dir(head)}/setup.sh" if plan.slurm["setup"] else None,
        image=container["image"] if in_apptainer else None,
        mounts=_mounts(plan) if in_apptainer else [],
        python=head.python,
        agent=f"{plan.bundle_dir(head)}/orchestrator/node/__main__.py",
    )


def sbatch_script(plan: LaunchPlan) -> str:
    """
    The batch script of a Slurm job.

    Raises:
        UsageError: the user's own template cannot be rendered, or is not one of a job that orch can follow.
    """
    values = {
        "run_id": plan.run_id,
        "options": sbatch_options(plan),
        "srun_options": _srun_options(plan),
        "run_dir": plan.run_dir(plan.head),
        "runs_dir": plan.runs_dir(plan.head),
        "sweep_runs": plan.sweep.runs if plan.sweep else (),
        "node_count": plan.node_count,
        "spare_count": plan.spare_count,
    }
    if plan.slurm["template"] is None:
        return render("slurm.sbatch.j2", **values)
    from orchestrator.plan import custom_template  # noqa: PLC0415  only for who has a template

    return custom_template.render_custom(Path(plan.slurm["template"]).expanduser(), jinja_environment(), values)


def _srun_options(plan: LaunchPlan) -> list[str]:
    """What Pyxis is told; all other options of srun are in the template."""
    container = plan.slurm["container"]
    if container is None or container["runtime"] != "pyxis":
        return []
    return [f"--container-image={container['image']}", f"--container-mounts={','.join(_mounts(plan))}"]


def _mounts(plan: LaunchPlan) -> list[str]:
    """The workdir, where everything of orch's lies, and what the inventory mounts, each as outside:inside."""
    mounts = [plan.head.workdir, *plan.slurm["container"]["mounts"]]
    return [mount if ":" in mount else f"{mount}:{mount}" for mount in mounts]


def sbatch_options(plan: LaunchPlan) -> list[str]:
    """The #SBATCH options in order; what nobody set is not there. A new option is a row of OPTION_OF."""
    slurm = plan.slurm
    options = [
        f"--job-name={plan.job_name}",
        *([f"--array=0-{len(plan.sweep.runs) - 1}"] if plan.sweep else []),
        f"--nodes={plan.node_count + plan.spare_count}",
        *(["--no-kill"] if plan.spare_count else []),  # else Slurm would end the job with its first node
        "--ntasks-per-node=1",
        # below the folder of the attempt, where sbatch is run: Slurm expands no ~; a task of an array opens its run's own
        "--output=/dev/null" if plan.sweep else "--output=slurm-%j.log",
        "--open-mode=append",
        f"--signal=USR2@{slurm['warn_s']}",  # not USR1, which NCCL uses
        "--requeue" if slurm["requeue"] == "auto" else "--no-requeue",
    ]
    if not plan.by_count:
        options.append(f"--nodelist={fold(node.name for node in plan.nodes)}")
    told = {option: _told(plan, field) for field, option in OPTION_OF.items()}
    options += [
        f"--{option}={value}" if value else f"--{option}" for option, value in told.items() if value is not None
    ]
    return [_sbatch_quoted(option) for option in (*options, *slurm["options"])]


def _told(plan: LaunchPlan, field: str) -> str | None:
    """What sbatch is told for a field, empty for an option without a value; None where Slurm is to decide."""
    value, ranks = plan.slurm[field], len(plan.head.ranks)
    if field == "cpus" and value is None:
        whole = option_value(plan.slurm, "exclusive") in {"", "true"}
        said = any(option.startswith("--cpus-per-") for option in plan.slurm["options"])
        return None if whole or said else str(ranks)  # one task a node would otherwise get a single core
    if value is None or (field, value) == ("exclusive", "false"):
        return None
    if field == "exclusive" and value == "true":
        return ""
    if field == "gres":
        return ",".join(one if re.search(r":[0-9]+[KMGTP]?$", one) else f"{one}:{ranks}" for one in value.split(","))
    return fold(expand(value)) if field == "exclude" else str(value)


def _sbatch_quoted(option: str) -> str:
    """One option of an #SBATCH line; a newline in it would smuggle in further directives."""
    refuse_control(option, "slurm option")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]~-]+", option):
        return option
    return shlex.quote(option.replace("\\", "\\\\"))  # which sbatch takes for an escape within quotes as well
