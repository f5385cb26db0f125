"""From an inventory and a request to a LaunchPlan. Pure."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.node.ranks.rank_launchers import (
    FROM_ONE_NODE,
    MASTERS,
    NOT_NEEDED,
    SEPARATE,
    Launcher,
    find_launcher,
    fixed_node_rank,
    is_own_host,
    lone_option,
    option_of,
    per_node_command,
    underscored,
)
from orchestrator.plan.choose_nodes import Chosen, choose_nodes, difference
from orchestrator.plan.elastic import first_attempt
from orchestrator.plan.fixed_address import fixed_address, joined_command
from orchestrator.plan.node_plans import assign_ranks, with_debugging
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.restart_settings import is_warm, max_retries, restart_warnings, spares
from orchestrator.plan.slurm_job import (
    expanded_workdir,
    is_checked_in_job,
    refuse_containers,
    refuse_unequal_nodes,
    slurm_settings,
)
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import Program, Request, trainer_setting

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node

_SUBMITTERS = ("sbatch", "salloc")
_RUNTIMES = ("docker", "nvidia-docker", "podman", "nerdctl")
_TRAINING = re.compile(r"\.py\b|\b(?:python[\d.]*|torchrun|accelerate|deepspeed)\b")
_PASSES_RANK = re.compile(r"RANK|MASTER_ADDR|--env-file|--env-host")


def make_plan(
    inventory: Inventory,
    request: Request,
    *,
    run_id: str,
    bundle: str,
    commit: str = "",
    code_root: str = "",
    folder: str = "",
    home: str | None = None,
    user: str | None = None,
) -> LaunchPlan:
    """
    Decide everything about a launch.

    Args:
        bundle: digest of the bundle that the nodes need.
        commit: the commit of the code in it.
        code_root: the root of that code on this machine; empty if no code is sent.
        folder: the folder of the launch on this machine; its runs of one name share the kept folders. Empty: none is kept.
        home: the user's home folder on the machine that runs sbatch, to expand "~/" (a container may have another home).
        user: the user's name there, to expand a folder "$USER". None: not known here.

    Raises:
        UsageError: the request does not fit the inventory.
    """
    by_slurm = request.launcher == "slurm"
    chosen = choose_nodes(inventory, request)
    _refuse_container(request, chosen)
    _refuse_rank_launcher(request, chosen)
    _refuse_fixed_address(request, chosen)
    if by_slurm:
        refuse_containers(inventory, chosen)
        refuse_unequal_nodes(inventory, chosen)
    chosen, sizes, unused = first_attempt(inventory, request, chosen)
    nodes = assign_ranks(inventory, chosen.nodes, chosen.ranks_each, request.variables)
    warnings: Sequence[str] = ()
    if request.debug:
        nodes, warnings = with_debugging(nodes, chosen.nodes)
    if by_slurm:
        nodes = tuple(replace(node, workdir=expanded_workdir(node.workdir, home, user, inventory)) for node in nodes)
    return LaunchPlan(
        run_id=run_id,
        attempt=1,
        launcher=request.launcher,
        transport=inventory.transport,
        name=inventory.name,
        nodes=nodes,
        node_count=chosen.node_count,
        spare_count=inventory.slurm.spare_nodes if by_slurm else 0,
        world_size=sum(chosen.ranks_each[: chosen.node_count]),
        by_count=chosen.by_count,
        program=request.program,
        config=request.config,
        device=_trainer_device(request, chosen.nodes),
        accelerator=_accelerator(request, chosen.nodes),
        network=_common(node.network for node in chosen.nodes),
        bind=inventory.bind,
        bundle=bundle,
        commit=commit,
        code_root=code_root,
        ssh=inventory.ssh.model_dump(mode="json"),
        max_retries=max_retries(inventory, request),
        at_any_step=bool(request.max_retries),
        sizes=sizes,
        warm=is_warm(inventory, request),
        spares=spares(inventory, request, chosen, unused),
        slurm=slurm_settings(inventory, request, by_count=chosen.by_count),
        orphan_timeout_s=request.orphan_timeout_s,
        isolation_timeout_s=None if by_slurm else request.isolation_timeout_s,
        wait_for_nodes_s=request.wait_for_nodes_s,
        setup=(*inventory.setup, *(inventory.slurm.setup if by_slurm else ())),
        warnings=(*chosen.warnings, *warnings, *_env_warnings(inventory, chosen.nodes), *restart_warnings(request)),
        is_checked_in_job=is_checked_in_job(inventory, request),
        skipped=request.skipped,
        required=inventory.checks.model_dump(mode="json", exclude_defaults=True),
        keep=inventory.keep if (name := _kept_name(run_id, folder, request)) else (),
        kept_name=name if inventory.keep else "",
        hooks=() if request.is_trial else tuple(hook.model_dump(mode="json") for hook in inventory.hooks),
    )


def _kept_name(run_id: str, folder: str, request: Request) -> str:
    """`NAME/FOLDER-DIGEST`; empty for the shared trainer, whose `out` is not relative, and for trials, which must not write there."""
    if not folder or request.is_trial or request.program.kind == "trainer":
        return ""
    project = re.sub(r"[^A-Za-z0-9._-]", "_", posixpath.basename(folder)) or "root"
    return f"{run_id.rsplit('-', 3)[0]}/{project}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]}"


def _env_warnings(inventory: Inventory, nodes: Sequence[Node]) -> Iterator[str]:
    """Warn about variables that also affect the agent, and about secrets in the inventory file."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if affected := [node.name for node in nodes if name in inventory.environment(node)]:
            yield f"env: {name} on {fold(affected)} loads code into every program there, the agent included"
    if inventory.file in inventory.private_files:
        yield f"{inventory.file} holds secrets, so it is not sent to the nodes with the code; move them to an env_file:"


def _trainer_device(request: Request, nodes: Sequence[Node]) -> str | None:
    """The nodes' accelerator for the shared trainer; None if the inventory names none, or the user sets `device`."""
    if request.program.kind != "trainer" or trainer_setting(request.program, request.config, "device") is not None:
        return None
    node_by_value = {node.accelerator: node.name for node in nodes if node.accelerator != "auto"}
    if len(node_by_value) > 1:
        raise UsageError(
            f"nodes differ in accelerator: {difference(node_by_value.items())}; one training runs on one kind",
            hint="choose equal nodes with --nodes, or set device=",
        )
    return next(iter(node_by_value), None)


def _accelerator(request: Request, nodes: Sequence[Node]) -> str:
    """The accelerator that the ranks use, by the trainer's setting or else the inventory; `auto` if nodes differ."""
    if device := trainer_setting(request.program, request.config, "device"):
        return str(device) if device in ("cpu", "cuda", "gcu") else "auto"
    return _common(node.accelerator for node in nodes)


def _common(settings: Iterable[str]) -> str:
    """The setting of all nodes; `auto` if they differ."""
    values = set(settings)
    return values.pop() if len(values) == 1 else "auto"


def _refuse_fixed_address(request: Request, chosen: Chosen) -> None:
    """Refuse a program with the options for one node, such as `--dist-url tcp://localhost:23456 --rank 0`, on several."""
    program, ranks = request.program, chosen.ranks_each[: chosen.node_count]
    if program.kind == "trainer" or len(ranks) == 1 or _is_separate(request, chosen) or find_launcher(program.args):
        return
    if option := fixed_address(program.args):
        count = f"{len(ranks)} nodes" if program.per_node else f"{sum(ranks)} ranks"
        command = joined_command(request.verb, program.args)
        raise UsageError(
            f"the program would be started in each of the {count}, and {option}", hint=f"one training: {command}"
        )


def _is_separate(request: Request, chosen: Chosen) -> bool:
    """True if the user declares that each node trains by itself."""
    return all(request.variables.get(SEPARATE, node.env.get(SEPARATE)) == "1" for node in chosen.nodes)


def _refuse_container(request: Request, chosen: Chosen) -> None:
    """Refuse a training in `docker run` without the variables for its rank, with which each rank or node would train alone."""
    words = request.program.args
    ranks = chosen.ranks_each[: chosen.node_count]
    count = len(ranks) if request.program.per_node else sum(ranks)
    has_run = "run" in words[1:3] and words[0].rpartition("/")[2] in _RUNTIMES
    if request.program.kind != "executable" or not has_run or count == 1 or _is_separate(request, chosen):
        return
    is_training = any(_TRAINING.search(word) for word in words[2:])
    field = "slurm: {container: …}" if request.launcher == "slurm" else "container: {image: …}"
    if is_training and not any(_PASSES_RANK.search(word) for word in words):
        raise UsageError(
            f"{words[0]} run passes no variables of a rank into the container, so that each of {count} would train alone",
            hint=f"`{field}` in the inventory, and the program alone after --; or -e with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
        )


def _refuse_rank_launcher(request: Request, chosen: Chosen) -> None:
    """Refuse a launcher such as torchrun that is started in each rank, or once per node without the other nodes."""
    program = request.program
    if program.kind == "executable" and program.args[0].rpartition("/")[2] in _SUBMITTERS:
        raise UsageError(
            f"{program.args[0]} would submit another job in each of the {sum(chosen.ranks_each[: chosen.node_count])} ranks",
            hint="`orch submit … -- PROGRAM` submits the job: name the program that the batch script starts, and its #SBATCH options in slurm: "
            "of the inventory",
        )
    launcher = None if program.kind == "trainer" else find_launcher(program.args)
    if launcher is None:
        return
    ranks = chosen.ranks_each[: chosen.node_count]
    command = per_node_command(request.verb, program.args)
    is_alone = sum(ranks) == 1 and not (launcher.key == "srun" and request.launcher == "slurm")
    if launcher.key in NOT_NEEDED and not is_alone:
        raise UsageError(
            f"orch starts the ranks itself: {launcher.name} would start others in them", hint=f"omit it: {command}"
        )
    if not program.per_node and not is_alone:
        raise UsageError(
            f"{launcher.name} starts ranks itself, but would be started in each of the {sum(ranks)} ranks",
            hint=f"start it once per node: {command}",
        )
    lone = _lone_reason(launcher, program)
    if len(ranks) > 1 and lone and not _is_separate(request, chosen):
        raise UsageError(
            f"{lone}, but it would be started on each of the {len(ranks)} nodes", hint=f"one training: {command}"
        )


def _lone_reason(launcher: Launcher, program: Program) -> str:
    """Why this launcher joins no other node, if it is started on several; empty if it may."""
    if launcher.key in FROM_ONE_NODE:
        return "" if program.until_head else f"{launcher.name} starts the ranks of all nodes from one node"
    words = list(program.args[launcher.words :])
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), len(words))
    words = words[:script]
    if option := lone_option(words):
        return f"{launcher.name} with {option} starts a training of one node"
    if option := fixed_node_rank(words):
        return f"{launcher.name} with {option} is the line of one node"
    if launcher.key == "deepspeed" and not program.until_head and "--no_ssh" not in map(underscored, words):
        return "deepspeed without --no_ssh starts the ranks of all nodes by ssh, or those of one node"
    master = option_of(words, MASTERS)
    if master is None and option_of(words, ("--rdzv_backend",)) == "c10d":
        return f"{launcher.name} with c10d and no --rdzv_endpoint looks for rank 0 on its own node"
    return f"{launcher.name} with the address {master} looks for rank 0 on its own node" if is_own_host(master) else ""
