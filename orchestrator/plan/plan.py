"""From inventory and request to a LaunchPlan: exactly what will happen, decided without touching anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.names.hostlist import fold
from orchestrator.names.slurm_options import warn_s
from orchestrator.plan import sbatch
from orchestrator.run import LauncherName, Program, Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node

GRACE_S = 10.0
SPARE = "spare"
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


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node's part. `ranks` are global, `env` is what its ranks get on top of the node's own environment."""

    name: str
    address: str
    node_rank: int
    ranks: range
    env: Mapping[str, str]
    user: str | None
    port: int | None
    python: str
    workdir: str
    is_spare: bool = False
    secrets: frozenset[str] = frozenset()
    """The names in `env` whose values are neither shown nor recorded."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs that are submitted together, as the tasks of one array."""

    id: str
    runs: tuple[str, ...]
    """The ids of all of them, in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """
    Everything that a launcher needs, and all that it does.

    Under Slurm by count (`by_count`), `nodes` are the inventory's candidates: which of them run, and as which node
    rank, Slurm decides. With `spare_count`, so many nodes more than `node_count` are asked for, to take the place of failed ones.
    """

    run_id: str
    attempt: int
    launcher: LauncherName
    transport: str
    name: str
    nodes: tuple[NodePlan, ...]
    node_count: int
    world_size: int
    by_count: bool
    program: Program
    config: str | None
    bundle: str
    ssh: Mapping[str, Any]
    slurm: Mapping[str, Any]
    orphan_timeout_s: float | None = None
    isolation_timeout_s: float | None = None
    warnings: tuple[str, ...] = ()
    sweep: Sweep | None = None
    spare_count: int = 0
    device: str | None = None
    """What the shared trainer is told to train on, because the inventory says it and the user does not."""

    @property
    def job_name(self) -> str:
        """What Slurm calls the job, by which it is found again."""
        return self.sweep.id if self.sweep else self.run_id

    @property
    def head(self) -> NodePlan:
        """The node of rank 0, which hosts the rendezvous."""
        return self.nodes[0]

    def run_dir(self, node: NodePlan) -> str:
        """The run's folder on that node (ORCH_RUN_DIR)."""
        return f"{self.runs_dir(node)}/{self.run_id}"

    def runs_dir(self, node: NodePlan) -> str:
        """Where all runs are on that node."""
        return f"{node.workdir}/runs"

    def attempt_dir(self, node: NodePlan) -> str:
        """The attempt's folder on that node, with one folder a node in it."""
        return f"{self.run_dir(node)}/attempt-{self.attempt}"

    def node_dir(self, node: NodePlan) -> str:
        """The node's own folder: its agent's records, its ranks' output."""
        return f"{self.attempt_dir(node)}/{node.name}"

    def bundle_dir(self, node: NodePlan) -> str:
        """Where the bundle lies on that node."""
        return f"{node.workdir}/bundles/{self.bundle}"


def make_plan(
    inventory: Inventory, request: Request, *, run_id: str, bundle: str, home: str | None = None
) -> LaunchPlan:
    """
    Decide everything about a launch.

    Args:
        bundle: digest of the bundle that the nodes need.
        home: the user's home where sbatch is run, for a "~/" that an image might take for another one; None if not known here.

    Raises:
        UsageError: the request does not fit the inventory.
    """
    chosen, ranks_each, warnings = _choose(inventory, request)
    by_count = request.launcher == "slurm" and request.nodes is None
    node_count = request.shape.nodes if request.shape and by_count else len(chosen)
    if request.launcher == "slurm" and inventory.slurm.spare_nodes:
        chosen = _with_spares(inventory, chosen, by_count=by_count)
        ranks_each += ranks_each[:1] * (len(chosen) - len(ranks_each))
    nodes = number(inventory, chosen, ranks_each)
    if request.launcher == "slurm":
        _agree_for_slurm(chosen)
        nodes = tuple(replace(node, workdir=_absolute(node.workdir, home, inventory)) for node in nodes)
    slurm = inventory.slurm.model_dump(mode="json")
    device = _device(request, chosen)
    return LaunchPlan(
        run_id=run_id,
        attempt=1,
        launcher=request.launcher,
        transport=inventory.transport,
        name=inventory.name,
        nodes=nodes,
        node_count=node_count,
        spare_count=inventory.slurm.spare_nodes if request.launcher == "slurm" else 0,
        world_size=sum(ranks_each[:node_count]),
        by_count=by_count,
        program=request.program,
        config=request.config,
        device=device,
        bundle=bundle,
        ssh=inventory.ssh.model_dump(mode="json"),
        slurm={**slurm, "warn_s": warn_s(slurm)},
        orphan_timeout_s=request.orphan_timeout_s,
        isolation_timeout_s=None if request.launcher == "slurm" else request.isolation_timeout_s,
        warnings=(*warnings, *_about_env(inventory, chosen)),
    )


def _about_env(inventory: Inventory, nodes: Sequence[Node]) -> Iterator[str]:
    """Warn of variables that do more than they seem to."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if having := [node.name for node in nodes if name in inventory.environment(node)]:
            yield f"env: {name} on {fold(having)} loads code into every program there, the agent included"
    if inventory.file in inventory.private_files:
        yield f"{inventory.file} holds secrets, so it does not travel with the code; env_file: is the place for them"


def _choose(inventory: Inventory, request: Request) -> tuple[tuple[Node, ...], list[int], tuple[str, ...]]:
    """The nodes in node order, how many ranks each of them gets, and what to warn about."""
    if request.nodes is not None:
        nodes = tuple(inventory.select(request.nodes))
    else:
        nodes = tuple(node for node in inventory.nodes if SPARE not in node.tags)
    if not nodes:
        raise UsageError(f"{inventory.file}: every node is tagged {SPARE!r}", hint="name some with --nodes")
    if request.shape is None:
        return nodes, [node.devices for node in nodes], _unknown_devices(inventory, nodes)
    wanted, ranks = request.shape.nodes, request.shape.ranks
    if wanted > len(nodes):
        raise UsageError(
            f"-j {wanted}x{ranks} needs {wanted} nodes; {inventory.file} has {len(nodes)}: {fold(n.name for n in nodes)}",
            hint="ask for fewer nodes, or add nodes to the inventory",
        )
    if request.launcher == "ssh":
        nodes = nodes[:wanted]
    short = [node for node in nodes if node.devices < ranks]
    if short:
        raise UsageError(
            f"-j {wanted}x{ranks} asks for {ranks} ranks a node; {short[0].name} has {short[0].devices} devices",
            hint="one rank runs on one device: lower R in -j NxR, or correct `devices` in the inventory",
        )
    idle = [node for node in nodes if node.devices > ranks]
    warnings = (f"{ranks} of {idle[0].devices} devices a node are used: -j {wanted}x{ranks} asks so",) if idle else ()
    return nodes, [ranks] * len(nodes), warnings


def _with_spares(inventory: Inventory, chosen: Sequence[Node], *, by_count: bool) -> tuple[Node, ...]:
    """The chosen nodes and those that may replace one: by name as many as are wanted, else whatever Slurm may take."""
    others = [node for node in inventory.nodes if SPARE in node.tags and node not in chosen]
    wanted = inventory.slurm.spare_nodes
    if by_count:
        return (*chosen, *others)
    if len(others) < wanted:
        raise UsageError(
            f"slurm.spare_nodes: {wanted} are asked for beside {fold(node.name for node in chosen)}; {inventory.file} tags "
            f"{len(others)} more as spare",
            hint="add `tags: [spare]` to nodes, or let Slurm choose: without --nodes",
        )
    return (*chosen, *others[:wanted])


def _device(request: Request, nodes: Sequence[Node]) -> str | None:
    """The accelerator that the nodes have in the inventory, for the shared trainer; None where it says none, or the user does."""
    if request.program.kind != "trainer":
        return None
    settings = {word.partition("=")[0] for word in request.program.args} | set(json.loads(request.config or "{}"))
    if "device" in settings:
        return None
    named = {node.accelerator: node.name for node in nodes if node.accelerator != "auto"}
    if len(named) > 1:
        one, other = list(named.items())[:2]
        raise UsageError(
            f"nodes differ in accelerator: {one[1]} has {one[0]}, {other[1]} has {other[0]}; one training runs on one kind",
            hint="choose nodes that agree with --nodes, or say device=",
        )
    return next(iter(named), None)


def _unknown_devices(inventory: Inventory, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Warn where a default of one rank a node may leave cards idle."""
    if inventory.devices is None and any(node.accelerator == "auto" and node.devices == 1 for node in nodes):
        return (f"{inventory.file} says neither accelerator nor devices: one rank a node, whatever cards there are",)
    return ()


def _absolute(path: str, home: str | None, inventory: Inventory) -> str:
    if not path.startswith("~/"):
        return path
    if home is None and inventory.slurm.container is not None:
        hint = "write workdir as it is on the login node, from / on"
        raise UsageError(
            f"workdir {path}: in a container ~ may be another home than on {inventory.slurm.login}", hint=hint
        )
    return path if home is None else f"{home}/{path[2:]}"


def _agree_for_slurm(nodes: Sequence[Node]) -> None:
    """One batch script serves all nodes, so what it names must be the same on all of them."""
    for field in ("workdir", "python", "devices"):
        values = {str(getattr(node, field)): node.name for node in nodes}
        if len(values) > 1:
            one, other = list(values.items())[:2]
            raise UsageError(
                f"nodes differ in {field}: {one[1]} has {one[0]}, {other[1]} has {other[0]}; under Slurm it must be one",
                hint=f"set {field} once in `defaults:`, or choose nodes that agree with --nodes",
            )


def number(inventory: Inventory, nodes: Sequence[Node], ranks_each: Sequence[int]) -> tuple[NodePlan, ...]:
    """Give every node its global ranks, contiguous from 0 in node order."""
    firsts = accumulate(ranks_each, initial=0)
    return tuple(
        NodePlan(
            name=node.name,
            address=node.address,
            node_rank=node_rank,
            ranks=range(first, first + count),
            env=inventory.environment(node),
            user=node.user,
            port=node.port,
            python=node.python,
            workdir=node.workdir,
            is_spare=SPARE in node.tags,
            secrets=inventory.secret_names(node),
        )
        for node_rank, (node, count, first) in enumerate(zip(nodes, ranks_each, firsts, strict=False))
    )


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
            PlannedFile(f"{plan.node_dir(node)}/node.sh", sbatch.node_script(plan, node)),
        ]
        for node in plan.nodes
    }


def _shared_files(plan: LaunchPlan, node: NodePlan) -> list[PlannedFile]:
    """What is the same on all nodes with the workdir of this one."""
    text = sbatch.job_text(job(plan) | {"run_dir": plan.run_dir(node), "bundle_dir": plan.bundle_dir(node)})
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


def to_json(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as it is stored with the run, without environment values: those are in the 0600 scripts only."""
    data = {**asdict(plan), "nodes": []}
    for node in plan.nodes:
        fields = {**asdict(node), "ranks": [node.ranks.start, node.ranks.stop]}
        data["nodes"].append({name: value for name, value in fields.items() if name not in ("env", "secrets")})
    return data


def from_json(data: Mapping[str, Any]) -> LaunchPlan:
    """The stored plan again; its nodes' environments are empty."""
    nodes = tuple(NodePlan(**{**node, "ranks": range(*node["ranks"]), "env": {}}) for node in data["nodes"])
    program = Program(**{**data["program"], "args": tuple(data["program"]["args"])})
    sweep = Sweep(data["sweep"]["id"], tuple(data["sweep"]["runs"])) if data.get("sweep") else None
    lists = {"warnings": tuple(data["warnings"]), "sweep": sweep}
    return LaunchPlan(**{**data, "nodes": nodes, "program": program, **lists})
