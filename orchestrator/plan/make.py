"""From an inventory and a request to a LaunchPlan. Pure."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.environment.debugging import debugging_variables
from orchestrator.environment.variable import Origin
from orchestrator.errors import UsageError
from orchestrator.inventory.redaction import is_secret
from orchestrator.names.hostlist import counted, expand, fold
from orchestrator.names.slurm_options import OPTION_OF, has_count, option_name, option_value, warn_s
from orchestrator.node.rank_launchers import (
    FROM_ONE_NODE,
    MASTERS,
    NOT_NEEDED,
    SEPARATE,
    Launcher,
    find_launcher,
    is_own_host,
    lone_option,
    option_of,
    per_node_command,
)
from orchestrator.plan.elastic import elastic_sizes
from orchestrator.plan.plan import LaunchPlan, NodePlan, Sizes
from orchestrator.run import Allocation, Program, Request, Shape, trainer_setting

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node


SLURM_RETRIES = 100  # by default: an unattended job restarts as long as it makes progress
SPARE = "spare"  # the tag of nodes that replace failed ones


def make_plan(
    inventory: Inventory,
    request: Request,
    *,
    run_id: str,
    bundle: str,
    commit: str = "",
    folder: str = "",
    home: str | None = None,
    user: str | None = None,
) -> LaunchPlan:
    """
    Decide everything about a launch.

    Args:
        bundle: digest of the bundle that the nodes need.
        commit: the commit of the code in it.
        folder: the folder of the launch on this machine; its runs of one name share the kept folders. Empty: none is kept.
        home: the user's home folder on the machine that runs sbatch, to expand "~/" (a container may have another home).
        user: the user's name there, to expand a folder "$USER". None: not known here.

    Raises:
        UsageError: the request does not fit the inventory.
    """
    chosen = _choose(inventory, request)
    chosen, sizes, unused = _elastic(inventory, request, chosen)
    nodes, warnings = _node_plans(inventory, request, chosen, home=home, user=user)
    return LaunchPlan(
        run_id=run_id,
        attempt=1,
        launcher=request.launcher,
        transport=inventory.transport,
        name=inventory.name,
        nodes=nodes,
        node_count=chosen.node_count,
        spare_count=inventory.slurm.spare_nodes if request.launcher == "slurm" else 0,
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
        ssh=inventory.ssh.model_dump(mode="json"),
        max_retries=_max_retries(inventory, request),
        at_any_step=bool(request.max_retries),
        sizes=sizes,
        warm=_is_warm(inventory, request),
        spares=_spares(inventory, request, chosen, unused),
        slurm=_slurm_settings(inventory, request, by_count=chosen.by_count),
        orphan_timeout_s=request.orphan_timeout_s,
        isolation_timeout_s=None if request.launcher == "slurm" else request.isolation_timeout_s,
        wait_for_nodes_s=request.wait_for_nodes_s,
        setup=(*inventory.setup, *(inventory.slurm.setup if request.launcher == "slurm" else ())),
        warnings=(
            *chosen.warnings,
            *warnings,
            *_env_warnings(inventory, chosen.nodes),
            *_restart_warnings(request),
        ),
        is_checked_in_job=_is_checked_in_job(inventory, request),
        skipped=request.skipped,
        keep=inventory.keep if (name := _kept_name(run_id, folder, request)) else (),
        kept_name=name if inventory.keep else "",
        hooks=_hooks(inventory, request),
    )


def _kept_name(run_id: str, folder: str, request: Request) -> str:
    """`NAME/FOLDER-DIGEST`; empty for the shared trainer, whose `out` is not relative, and for trials, which must not write there."""
    if not folder or request.is_trial or request.program.kind == "trainer":
        return ""
    project = re.sub(r"[^A-Za-z0-9._-]", "_", posixpath.basename(folder)) or "root"
    return f"{run_id.rsplit('-', 3)[0]}/{project}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]}"


def _hooks(inventory: Inventory, request: Request) -> tuple[dict[str, Any], ...]:
    if request.launcher == "slurm" or request.is_trial:
        return ()
    return tuple(hook.model_dump(mode="json") for hook in inventory.hooks)


def _elastic(inventory: Inventory, request: Request, chosen: _Chosen) -> tuple[_Chosen, Sizes | None, Sequence[Node]]:
    """The nodes of the first attempt of an elastic run, its sizes, and the chosen nodes above the most; without --elastic, all nodes."""
    elastic = request.elastic
    if elastic is None:
        return chosen, None, ()
    option = f"--elastic {elastic.least}:{elastic.most}"
    if not _max_retries(inventory, request):
        raise UsageError(
            f"{option} needs restarts, and there are none", hint="give --max-retries N, or restart: in the inventory"
        )
    if request.shape is not None and chosen.node_count > elastic.most:
        raise UsageError(
            f"-j {request.shape.nodes}x{request.shape.ranks} needs more nodes than {option} allows",
            hint="omit -j, or raise MAX",
        )
    if chosen.node_count < elastic.least:
        names = fold(node.name for node in chosen.nodes)
        raise UsageError(
            f"{option} needs at least {counted(elastic.least, 'node')}; there are {chosen.node_count}: {names}",
            hint="lower MIN",
        )
    if len(set(chosen.ranks_each)) > 1:
        difference = _difference((str(node.devices), node.name) for node in _unequal(chosen.nodes))
        raise UsageError(
            f"{option} needs nodes with equal numbers of ranks: {difference}", hint="give one number with -j NxR"
        )
    count = min(chosen.node_count, elastic.most)
    unused = chosen.nodes[count:]
    chosen = replace(chosen, nodes=chosen.nodes[:count], ranks_each=chosen.ranks_each[:count], node_count=count)
    return chosen, elastic_sizes(elastic, count, chosen.ranks_each[0]), unused


def _spares(
    inventory: Inventory, request: Request, chosen: _Chosen, unused: Sequence[Node] = ()
) -> tuple[NodePlan, ...]:
    """
    The nodes that may replace others over SSH: tagged as spare, of the same kind, and with a device for each rank.

    Args:
        unused: nodes that would have taken part in a larger run; they replace others, too.
    """
    if request.launcher == "slurm" or not _max_retries(inventory, request):
        return ()
    kinds, most = {node.accelerator for node in chosen.nodes}, max(chosen.ranks_each)
    tagged = [node for node in inventory.nodes if SPARE in node.tags and node not in (*chosen.nodes, *unused)]
    spares = [node for node in (*unused, *tagged) if node.accelerator in kinds and node.devices >= most]
    nodes = assign_ranks(inventory, spares, [0] * len(spares), request.variables)
    return _with_debugging(nodes, spares)[0] if request.debug else nodes


def _max_retries(inventory: Inventory, request: Request) -> int:
    """How often the run is restarted: by the command line, else the inventory, where `slurm:` wins for a Slurm job."""
    by_slurm = request.launcher == "slurm"
    settings = (request.max_retries, inventory.slurm.max_retries if by_slurm else None, inventory.restart.max_retries)
    return next((value for value in settings if value is not None), SLURM_RETRIES if by_slurm else 0)


def _is_warm(inventory: Inventory, request: Request) -> bool:
    """True for a training of the shared trainer that may be restarted over SSH, unless lines of shell start its agents."""
    may_restart = request.launcher != "slurm" and _max_retries(inventory, request) > 0
    is_training = request.program.kind == "trainer" and request.program.module == "trainer"
    return inventory.restart.warm and may_restart and is_training and not inventory.setup


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The nodes of a launch, with the spare ones at the end, and the number of ranks of each."""

    nodes: tuple[Node, ...]
    ranks_each: Sequence[int]
    node_count: int
    """Without the spare nodes."""
    by_count: bool
    """Slurm chooses that number of nodes among them."""
    warnings: Sequence[str]


def _choose(inventory: Inventory, request: Request) -> _Chosen:
    """Choose the nodes, and refuse a request that they cannot run."""
    nodes, ranks_each, warnings = _select_nodes(inventory, request)
    by_count = request.launcher == "slurm" and request.nodes is None and request.allocation is None
    node_count = request.shape.nodes if request.shape else len(nodes)
    if request.launcher == "slurm" and inventory.slurm.spare_nodes:
        nodes = _with_spares(inventory, nodes, by_count=by_count)
        ranks_each += ranks_each[:1] * (len(nodes) - len(ranks_each))
    is_separate = all(request.variables.get(SEPARATE, node.env.get(SEPARATE)) == "1" for node in nodes)
    _refuse_rank_launcher(request, ranks_each[:node_count], is_separate=is_separate)
    if request.launcher == "slurm":
        _check_nodes_are_equal(nodes)
        _check_ranks_are_equal(inventory, nodes, ranks_each, by_count=by_count)
    return _Chosen(nodes, ranks_each, node_count, by_count, warnings)


def _node_plans(
    inventory: Inventory, request: Request, chosen: _Chosen, *, home: str | None, user: str | None
) -> tuple[tuple[NodePlan, ...], Sequence[str]]:
    """The part of the plan on each node, and warnings."""
    nodes = assign_ranks(inventory, chosen.nodes, chosen.ranks_each, request.variables)
    warnings: Sequence[str] = ()
    if request.debug:
        nodes, warnings = _with_debugging(nodes, chosen.nodes)
    if request.launcher == "slurm":
        nodes = tuple(replace(node, workdir=_expanded(node.workdir, home, user, inventory)) for node in nodes)
    return nodes, warnings


def _changed(env: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with these variables, and without those that are None."""
    changed = {**env, **variables}
    return {name: value for name, value in changed.items() if value is not None}


def _is_checked_in_job(inventory: Inventory, request: Request) -> bool:
    """
    True for a Slurm job, unless its nodes cannot be checked.

    A custom template has its own commands. Pyxis would create the container twice. A step of another job has no batch script.
    """
    if request.launcher != "slurm" or request.no_check or request.allocation is not None:
        return False
    container = inventory.slurm.container
    return inventory.slurm.template is None and (container is None or container.runtime != "pyxis")


def _with_debugging(planned: Sequence[NodePlan], nodes: Sequence[Node]) -> tuple[tuple[NodePlan, ...], Sequence[str]]:
    """The nodes with the variables of --debug, and a warning about each that the inventory sets to another value."""
    changed, kept = [], dict[str, list[str]]()
    for node_plan, node in zip(planned, nodes, strict=True):
        variables = debugging_variables(node.accelerator, node_plan.env)
        added = {
            variable.name: variable.value for variable in variables if variable.origin is Origin.FLAG and variable.value
        }
        changed.append(replace(node_plan, env={**node_plan.env, **added}))
        for variable in variables:
            if variable.name not in added:
                kept.setdefault(f"{variable.name}={variable.value}", []).append(node.name)
    return tuple(changed), [
        f"--debug keeps {setting} of the inventory on {fold(names)}" for setting, names in kept.items()
    ]


def _env_warnings(inventory: Inventory, nodes: Sequence[Node]) -> Iterator[str]:
    """Warn about variables that also affect the agent, and about secrets in the inventory file."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if affected := [node.name for node in nodes if name in inventory.environment(node)]:
            yield f"env: {name} on {fold(affected)} loads code into every program there, the agent included"
    if inventory.file in inventory.private_files:
        yield f"{inventory.file} holds secrets, so it is not sent to the nodes with the code; move them to an env_file:"


def _restart_warnings(request: Request) -> Iterator[str]:
    """Warn if the user requests restarts of a program whose steps are not counted."""
    program = request.program
    if not request.max_retries or program.kind == "trainer" or program.is_prepared:
        return
    name = f"{program.args[0]}{' with --bare' if program.bare else ''}"
    yield (
        f"--max-retries {request.max_retries}: steps of {name} are not counted, so it is restarted only after exit code 99, after the loss of a "
        "node, or if it reports its steps (`from orch_progress import report`)"
    )


def _select_nodes(inventory: Inventory, request: Request) -> tuple[tuple[Node, ...], list[int], tuple[str, ...]]:
    """The chosen nodes in node order, the number of ranks of each, and warnings."""
    if request.allocation is not None:
        nodes = _nodes_of_allocation(inventory, request.allocation, request.nodes)
    elif request.nodes is not None:
        nodes = tuple(inventory.select(request.nodes))
    else:
        nodes = tuple(node for node in inventory.nodes if SPARE not in node.tags)
    if not nodes:
        raise UsageError(f"{inventory.file}: every node is tagged {SPARE!r}", hint="name some with --nodes")
    if request.shape is None:
        return nodes, [node.devices for node in nodes], _device_warnings(inventory, nodes)
    node_count, ranks = request.shape.nodes, request.shape.ranks
    source = inventory.file if request.allocation is None else f"Slurm job {request.allocation.job}"
    if node_count > len(nodes):
        raise UsageError(
            f"-j {node_count}x{ranks} needs {counted(node_count, 'node')}; {source} has {len(nodes)}: {fold(n.name for n in nodes)}",
            hint="request fewer nodes, or add nodes to the inventory",
        )
    fitting, small = _by_size(nodes, ranks)
    if node_count > len(fitting):
        enough = f"; only {fold(node.name for node in fitting)} has as many" if fitting else ""
        raise UsageError(
            f"-j {node_count}x{ranks} needs {counted(ranks, 'device')} per node; "
            f"{small[0].name} has {counted(small[0].devices, 'device')}{enough}",
            hint=f"one rank runs on one device: lower R in -j NxR, or {_devices_hint(inventory, ranks)}",
        )
    is_free_choice = request.launcher == "slurm" and request.nodes is None and request.allocation is None
    nodes = fitting if is_free_choice else fitting[:node_count]
    warnings = []
    if small:
        warnings.append(
            f"-j {node_count}x{ranks} leaves out {fold(node.name for node in small)}, with fewer than {ranks} devices"
        )
    if larger := next((node for node in nodes if node.devices > ranks), None):
        warnings.append(f"-j {node_count}x{ranks} uses {ranks} of {counted(larger.devices, 'device')} per node")
    return nodes, [ranks] * len(nodes), tuple(warnings)


def _devices_hint(inventory: Inventory, ranks: int) -> str:
    if inventory.file:
        return "correct `devices` in the inventory"
    return f"write an inventory.yaml with these nodes and the line `devices: {ranks}`"


def _by_size(nodes: Sequence[Node], ranks: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes that have a device for each of so many ranks, and the others."""
    fitting = tuple(node for node in nodes if node.devices >= ranks)
    return fitting, tuple(node for node in nodes if node.devices < ranks)


def _slurm_settings(inventory: Inventory, request: Request, *, by_count: bool) -> dict[str, Any]:
    """The `slurm:` section, and what follows from it and from the request."""
    slurm = inventory.slurm.model_dump(mode="json")
    if by_count and request.shape is not None:
        slurm = _without_small_nodes(slurm, inventory, request.shape)
    if request.allocation is not None:
        slurm["allocation"] = request.allocation.job
    return {**slurm, "warn_s": warn_s(slurm), "is_warn_s_given": slurm["warn_s"] is not None}


def _without_small_nodes(slurm: dict[str, Any], inventory: Inventory, shape: Shape) -> dict[str, Any]:
    """The `slurm:` section with the nodes excluded that have too few devices: Slurm, which chooses the nodes, does not know them."""
    _, small = _by_size(inventory.nodes, shape.ranks)
    if not small:
        return slurm
    given = option_value(slurm, "exclude")
    exclude = fold({*(expand(given) if given else ()), *(node.name for node in small)})
    options = [option for option in slurm["options"] if option_name(option) != OPTION_OF["exclude"]]
    return {**slurm, "exclude": exclude, "options": options}


def _nodes_of_allocation(inventory: Inventory, allocation: Allocation, names: str | None) -> tuple[Node, ...]:
    """The nodes of the inventory that the allocation has, or those in `names`, in the order of Slurm, which numbers the tasks."""
    chosen = {node.name: node for node in (inventory.select(names) if names is not None else inventory.nodes)}
    if names is not None and (absent := chosen.keys() - set(allocation.nodes)):
        raise UsageError(
            f"--nodes: {fold(absent)} is not in the allocation of Slurm job {allocation.job}, which has {fold(allocation.nodes)}",
            hint="name nodes of the allocation, or omit --here to queue a job",
        )
    nodes = tuple(chosen[name] for name in allocation.nodes if name in chosen)
    if not nodes:
        raise UsageError(
            f"Slurm job {allocation.job} has {fold(allocation.nodes)}, and {inventory.file} has none of them",
            hint="add them to the inventory; `orch inventory import scontrol` writes one",
        )
    return nodes


def _with_spares(inventory: Inventory, chosen: Sequence[Node], *, by_count: bool) -> tuple[Node, ...]:
    """The chosen nodes and their spares: the first `slurm.spare_nodes` of the inventory, or all if Slurm chooses nodes."""
    spares = [node for node in inventory.nodes if SPARE in node.tags and node not in chosen]
    count = inventory.slurm.spare_nodes
    if by_count:
        return (*chosen, *spares)
    if len(spares) < count:
        raise UsageError(
            f"slurm.spare_nodes: {count} needed in addition to {fold(node.name for node in chosen)}; {inventory.file} tags "
            f"{len(spares)} more as spare",
            hint="add `tags: [spare]` to nodes, or let Slurm choose: without --nodes",
        )
    return (*chosen, *spares[:count])


def _trainer_device(request: Request, nodes: Sequence[Node]) -> str | None:
    """The nodes' accelerator for the shared trainer; None if the inventory names none, or the user sets `device`."""
    if request.program.kind != "trainer" or trainer_setting(request.program, request.config, "device") is not None:
        return None
    node_by_value = {node.accelerator: node.name for node in nodes if node.accelerator != "auto"}
    if len(node_by_value) > 1:
        raise UsageError(
            f"nodes differ in accelerator: {_difference(node_by_value.items())}; one training runs on one kind",
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


def _refuse_rank_launcher(request: Request, ranks: Sequence[int], *, is_separate: bool) -> None:
    """
    Refuse a launcher such as torchrun that is started in each rank, or once per node without the other nodes.

    Args:
        is_separate: the user declares that each node trains by itself.
    """
    program = request.program
    launcher = None if program.kind == "trainer" else find_launcher(program.args)
    if launcher is None:
        return
    command = per_node_command("submit" if request.launcher == "slurm" else "ssh-launch", program.args)
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
    if len(ranks) > 1 and lone and not is_separate:
        raise UsageError(
            f"{lone}, but it would be started on each of the {len(ranks)} nodes", hint=f"one training: {command}"
        )


def _lone_reason(launcher: Launcher, program: Program) -> str:
    """Why this launcher joins no other node, if it is started on several; empty if it may."""
    if launcher.key in FROM_ONE_NODE:
        return "" if program.until_head else f"{launcher.name} starts the ranks of all nodes from one node"
    option = lone_option(program.args[launcher.words :])
    if option:
        return f"{launcher.name} with {option} starts a training of one node"
    master = option_of(program.args[launcher.words :], MASTERS)
    return f"{launcher.name} with the address {master} looks for rank 0 on its own node" if is_own_host(master) else ""


def _difference(values_and_nodes: Iterable[tuple[str, str]]) -> str:
    """The first two values, each with a node that has it."""
    return ", ".join(f"{node} has {value}" for value, node in list(values_and_nodes)[:2])


def _device_warnings(inventory: Inventory, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Warn if the default of one rank per node may leave cards idle."""
    if inventory.devices is None and any(node.accelerator == "auto" and node.devices == 1 for node in nodes):
        return (f"{inventory.file} sets neither accelerator nor devices: one rank per node, whatever cards there are",)
    return ()


def _expanded(path: str, home: str | None, user: str | None, inventory: Inventory) -> str:
    if home is not None and path.startswith("~/"):
        path = f"{home}/{path[2:]}"
    parts = [user if user is not None and part == "$USER" else part for part in path.split("/")]
    if inventory.slurm.container is not None and (parts[0] == "~" or "$USER" in parts):
        hint = "write workdir as an absolute path on the login node, without variables"
        raise UsageError(
            f"workdir {path}: in a container ~ and $USER may be others than on {inventory.slurm.login}", hint=hint
        )
    return "/".join(parts)


def _check_ranks_are_equal(
    inventory: Inventory, nodes: Sequence[Node], ranks_each: Sequence[int], *, by_count: bool
) -> None:
    """Refuse nodes with different numbers of ranks where a Slurm job cannot have them."""
    if len(set(ranks_each)) == 1:
        return
    difference = f"nodes differ in devices: {_difference((str(node.devices), node.name) for node in _unequal(nodes))}"
    if by_count:
        raise UsageError(
            f"{difference}; Slurm chooses the nodes, so all need the same number of ranks",
            hint="name the nodes with --nodes, or give one number of ranks with -j NxR",
        )
    if inventory.slurm.spare_nodes:
        raise UsageError(
            f"{difference}; a spare node can only replace an equal one",
            hint="give one number of ranks with -j NxR, or --set slurm.spare_nodes=0",
        )
    gres = next((gres for gres in (inventory.slurm.gres or "").split(",") if gres and not has_count(gres)), None)
    if gres is not None:
        raise UsageError(
            f"{difference}; slurm.gres: {gres} requests one per rank, and a job requests the same of each node",
            hint=f"give one number of ranks with -j NxR, or a count that each node has: --set slurm.gres={gres}:N",
        )


def _unequal(nodes: Sequence[Node]) -> Iterator[Node]:
    """The first node, and the first with another number of devices."""
    yield nodes[0]
    yield next(node for node in nodes if node.devices != nodes[0].devices)


def _check_nodes_are_equal(nodes: Sequence[Node]) -> None:
    """Refuse nodes that one batch script cannot serve: it names one workdir and Python for all."""
    for field in ("workdir", "python"):
        node_by_value = {str(getattr(node, field)): node.name for node in nodes}
        if len(node_by_value) > 1:
            raise UsageError(
                f"nodes differ in {field}: {_difference(node_by_value.items())}; under Slurm all nodes need the same",
                hint=f"set {field} once in `defaults:`, or choose equal nodes with --nodes",
            )


def assign_ranks(
    inventory: Inventory,
    nodes: Sequence[Node],
    ranks_each: Sequence[int],
    variables: Mapping[str, str | None] = MappingProxyType({}),
) -> tuple[NodePlan, ...]:
    """Give every node its global ranks, contiguous from 0 in node order, and its environment with these variables."""
    secrets = frozenset(filter(is_secret, variables))
    firsts = accumulate(ranks_each, initial=0)
    return tuple(
        NodePlan(
            name=node.name,
            address=node.address,
            node_rank=node_rank,
            ranks=range(first, first + count),
            env=_changed(inventory.environment(node), variables),
            user=node.user,
            port=node.port,
            python=node.python,
            workdir=node.workdir,
            is_spare=SPARE in node.tags,
            secrets=inventory.secret_names(node) | secrets,
            accelerator=node.accelerator,
            network=node.network,
        )
        for node_rank, (node, count, first) in enumerate(zip(nodes, ranks_each, firsts, strict=False))
    )
