"""From a LaunchPlan to text: the files of templates/, and the transcript that --dry-run prints. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.hostlist import fold
from orchestrator.redaction import REDACTED
from orchestrator.resources import template_folder

if TYPE_CHECKING:
    from jinja2 import Environment

    from orchestrator.plan import LaunchPlan, NodePlan

# --export would cut values at commas and put them where everybody can read them.
_OWN_OPTIONS = frozenset(
    [
        "--export",
        "--job-name",
        "--no-requeue",
        "--nodelist",
        "--nodes",
        "--ntasks",
        "--ntasks-per-node",
        "--open-mode",
        "--output",
        "--requeue",
        "--signal",
        "--wrap",
    ]
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def node_script(plan: LaunchPlan, node: NodePlan) -> str:
    """node.sh of one node that orch reaches itself."""
    return _render(
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


def slurm_node_script(plan: LaunchPlan) -> str:
    """node.sh of a Slurm job: one for all nodes, which looks its own part up by SLURMD_NODENAME."""
    head = plan.head
    common = dict(set.intersection(*(set(node.env.items()) for node in plan.nodes)))
    own = [
        {
            "name": node.name,
            "address": node.address if node.address != node.name else None,
            "env": {name: value for name, value in node.env.items() if name not in common},
        }
        for node in plan.nodes
    ]
    return _render(
        "slurm_node.sh.j2",
        run_id=plan.run_id,
        common_env={name: value for name, value in head.env.items() if name in common},
        nodes=[node for node in own if node["env"] or node["address"]],
        python=head.python,
        agent=f"{plan.bundle_dir(head)}/orchestrator/node/__main__.py",
    )


def sbatch_script(plan: LaunchPlan) -> str:
    """The batch script of a Slurm job."""
    return _render(
        "slurm.sbatch.j2",
        run_id=plan.run_id,
        options=sbatch_options(plan),
        run_dir=plan.run_dir(plan.head),
    )


def sbatch_options(plan: LaunchPlan) -> list[str]:
    """The #SBATCH options in order; what nobody set is not there. A new option of the inventory goes in here."""
    slurm = plan.slurm
    own = [option for option in slurm["options"] if option.partition("=")[0] in _OWN_OPTIONS]
    if own:
        raise UsageError(f"slurm.options: {own[0]} is decided by orch", hint="remove it; --nodes and -j choose nodes")
    options = [
        f"--job-name={plan.run_id}",
        f"--nodes={plan.node_count}",
        "--ntasks-per-node=1",
        f"--output={plan.attempt_dir(plan.head)}/slurm-%j.log",
        "--open-mode=append",
        f"--signal=USR2@{slurm['warn_s']}",  # not USR1, which NCCL uses
        "--requeue" if slurm["requeue"] == "auto" else "--no-requeue",
    ]
    if not plan.by_count:
        options.append(f"--nodelist={fold(node.name for node in plan.nodes)}")
    options += [
        f"--{name}={slurm[name]}" for name in ("partition", "account", "qos", "time") if slurm[name] is not None
    ]
    if not any(option.startswith(("--exclusive", "--cpus-per-")) for option in slurm["options"]):
        options.append(f"--cpus-per-task={len(plan.head.ranks)}")  # one task a node would otherwise get a single core
    return [_sbatch_quoted(option) for option in (*options, *slurm["options"])]


def job_text(job: Mapping[str, Any]) -> str:
    """job.json as text, a line a key."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in job.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def redacted(plan: LaunchPlan) -> LaunchPlan:
    """The same plan with the values of secret variables replaced, for showing and recording it."""
    from dataclasses import replace  # noqa: PLC0415

    def shown(node: NodePlan) -> NodePlan:
        return replace(node, env={name: REDACTED if name in node.secrets else text for name, text in node.env.items()})

    return replace(plan, nodes=tuple(shown(node) for node in plan.nodes))


@cache
def _environment() -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sh"] = quoted
    environment.filters["path"] = shell_path
    return environment


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)


def quoted(value: str) -> str:
    """The value as one shell word, always in quotes: `X==a` is a value of NCCL_IB_HCA and a puzzle for a reader."""
    return "'" + value.replace("'", "'\"'\"'") + "'"


def shell_path(path: str) -> str:
    """The path as one shell word; a leading "~/" becomes the home of whoever runs the script."""
    _refuse_control(path, "path")
    if path.startswith("~/"):
        return '"$HOME"/' + shlex.quote(path[2:])
    return shlex.quote(path)


def _sbatch_quoted(option: str) -> str:
    """One option of an #SBATCH line; a newline in it would smuggle in further directives."""
    _refuse_control(option, "slurm option")
    return option if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]~-]+", option) else shlex.quote(option)


def _refuse_control(text: str, what: str) -> None:
    found = _CONTROL.search(text)
    if found:
        raise UsageError(
            f"{what} {text!r} holds the control character {found.group()!r}",
            hint="remove it; only environment values may hold newlines",
        )
