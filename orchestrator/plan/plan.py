"""The LaunchPlan: everything that a launch will do, as a value that can be printed, stored and compared."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.inventory.redaction import REDACTED
from orchestrator.node.run.code_folder import KEPT
from orchestrator.node.run.run_folder import attempt_folder
from orchestrator.run import WAIT_FOR_NODES_S, ByLauncher, LauncherName, Program, trainer_setting
from orchestrator.stored import known_fields

GRACE_S = 10.0
_NODES = ("nodes", "spares", "replaced")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node's part. `ranks` are global; `env` is added to the node's own environment for its ranks."""

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
    accelerator: str = "auto"
    network: str = "auto"
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables for ranks that get them neither from `env` nor from the node."""
    container: Mapping[str, Any] | None = None
    """The container that is entered over SSH, running or of an image, in the fields of the inventory; None: the node itself."""

    @property
    def python_folder(self) -> str:
        """The folder of `python`, which is put first on PATH; empty if PATH itself decides which program `python` is."""
        return posixpath.dirname(self.python)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs that are submitted together, as the tasks of one job array."""

    id: str
    runs: tuple[str, ...]
    """The run ids, in the order of the tasks."""
    at_once: int | None = None
    """The number of runs that may run at the same time; None for no limit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that the attempts of an elastic run may have."""

    counts: tuple[int, ...]
    """Numbers of nodes, ascending; the last is that of the first attempt."""
    micro_batch: int | None = None
    """The micro batch of the shared trainer, whose samples per step stay the same at every size; None for another program."""
    batch: int | None = None
    """The samples per step of all ranks."""

    def settings(self, world_size: int) -> dict[str, int]:
        """The settings that keep the batch of the shared trainer with this number of ranks; none for another program."""
        if self.micro_batch is None or self.batch is None:
            return {}
        return {"batch": self.batch, "accumulation": self.batch // (self.micro_batch * world_size)}


@dataclass(frozen=True, slots=True)
class LaunchPlan(ByLauncher):
    """
    Every decision about a launch, and all input of the launcher.

    With `by_count` (Slurm only), `nodes` are the candidates of the inventory; Slurm chooses among them and assigns node ranks.
    The job requests `node_count` + `spare_count` nodes; spares replace failed nodes.
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
    wait_for_nodes_s: float = WAIT_FOR_NODES_S
    """A restart waits for this time for a lost node that no other can replace."""
    warnings: tuple[str, ...] = ()
    max_retries: int = 0
    """How often a failed run is restarted."""
    at_any_step: bool = False
    """The number is of this launch: the run is restarted after any step, also if none is known to be saved."""
    is_shared: bool = False
    """The nodes of the first attempt share the folder of the run; known once that has started over SSH."""
    sizes: Sizes | None = None
    """The sizes of an elastic run; None: every attempt has as many nodes as the first."""
    warm: bool = False
    """While an attempt runs, each node has a process that has imported the trainer, from which a restart forks the ranks."""
    spares: tuple[NodePlan, ...] = ()
    """Over SSH, the nodes without ranks that may replace nodes in later attempts."""
    replaced: tuple[NodePlan, ...] = ()
    """The nodes that took part in earlier attempts only."""
    earlier: tuple[tuple[str, ...], ...] = ()
    """The names of the nodes of each earlier attempt over SSH."""
    restarted: str = ""
    """Why this attempt follows another one; empty for the first."""
    setup: tuple[str, ...] = ()
    """Lines of shell that run on every node before its agent."""
    sweep: Sweep | None = None
    spare_count: int = 0
    commit: str = ""
    """The git commit of the code, with `-dirty` appended if tracked files differ from it; empty if there is none."""
    code_root: str = ""
    """The root of the code on the machine of the launch; empty if no code is sent."""
    device: str | None = None
    """The trainer's device by the inventory; None if the user sets it, or the inventory does not name it."""
    accelerator: str = "auto"
    """The accelerator of all nodes by the inventory; `auto` if it does not name one, or they differ."""
    network: str = "auto"
    """The network of all nodes by the inventory; `auto` as above."""
    bind: str = "auto"
    """`none`: ranks are not bound to the CPUs near their cards."""

    is_checked_in_job: bool = False
    """The batch script checks the nodes before the first attempt."""
    skipped: tuple[str, ...] = ()
    """The names of checks that are left out."""
    required: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The paths, modules and lines of shell that every node needs, as in `checks:` of the inventory."""
    keep: tuple[str, ...] = ()
    """The folders, relative to the ranks' working folder, that runs of the same name and launch folder share."""
    kept_name: str = ""
    """The path of the kept folders below `kept` in the workdir."""
    hooks: tuple[Mapping[str, Any], ...] = ()
    """The hooks of a run over SSH, in the fields of the inventory: a program or a message for each new state. Without secrets."""

    @property
    def job_name(self) -> str:
        return str(self.slurm.get("job_name") or (self.sweep.id if self.sweep else self.run_id))

    @property
    def allocation(self) -> str | None:
        """The id of the existing Slurm job in which the run is a step; None if the run is a job."""
        job = self.slurm.get("allocation")
        return None if job is None else str(job)

    @property
    def job_run(self) -> str:
        """The run in whose folder the Slurm job is submitted, by which later commands find it; of a sweep, the first."""
        return self.sweep.runs[0] if self.sweep else self.run_id

    @property
    def checkpoint_folder(self) -> str | None:
        """The folder where rank 0 of the shared trainer writes checkpoints, if the user has chosen one; None if in the workdir."""
        out = trainer_setting(self.program, self.config, "out")
        return out if isinstance(out, str) and out.startswith(("/", "~/")) else None

    @property
    def head(self) -> NodePlan:
        """The node of rank 0, which hosts the rendezvous."""
        return self.nodes[0]

    @property
    def used_nodes(self) -> tuple[NodePlan, ...]:
        """The nodes of all attempts so far."""
        return (*self.nodes, *self.replaced)

    def nodes_of(self, attempt: int) -> tuple[NodePlan, ...]:
        """The nodes of an attempt over SSH; for an earlier one, their ranks may be those of a later one."""
        if attempt > len(self.earlier):
            return self.nodes
        by_name = {node.name: node for node in (*self.spares, *self.replaced, *self.nodes)}
        return tuple(by_name[name] for name in self.earlier[attempt - 1])

    def rank_counts(self) -> Callable[[str], int]:
        """The number of ranks by node name, as a function; nodes that Slurm chooses have equally many."""
        counts = {} if self.by_count else {node.name: len(node.ranks) for node in self.used_nodes}
        chosen = self.world_size // self.node_count if self.by_count else 0
        return lambda node: counts.get(node, chosen)

    def run_dir(self, node: NodePlan) -> str:
        """The run's folder on that node (ORCH_RUN_DIR)."""
        return f"{self.runs_dir(node)}/{self.run_id}"

    def runs_dir(self, node: NodePlan) -> str:
        """The folder of all runs on that node."""
        return f"{node.workdir}/runs"

    def attempt_dir(self, node: NodePlan) -> str:
        """The attempt's folder on that node, with one folder per node in it."""
        return attempt_folder(self.run_dir(node), self.attempt)

    def node_dir(self, node: NodePlan) -> str:
        """The node's folder: its agent's records and its ranks' output."""
        return f"{self.attempt_dir(node)}/{node.name}"

    def setup_file(self, node: NodePlan) -> str | None:
        """The script with the setup lines on that node, which later attempts also use; None if there are no lines."""
        return f"{self.attempt_dir(node)}/setup.sh" if self.setup else None

    def kept_dir(self, node: NodePlan) -> str:
        return f"{node.workdir}/{KEPT}/{self.kept_name}"

    def bundle_dir(self, node: NodePlan) -> str:
        return f"{node.workdir}/bundles/{self.bundle}"


def to_json(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as it is stored with the run, without environment values: only the scripts (mode 0600) hold them."""

    def node_json(node: NodePlan) -> dict[str, Any]:
        fields = {**asdict(node), "ranks": [node.ranks.start, node.ranks.stop]}
        return {name: value for name, value in fields.items() if name not in ("env", "secrets")}

    lists: dict[str, Any] = {name: list(map(node_json, getattr(plan, name))) for name in _NODES}
    return {**asdict(replace(plan, nodes=(), spares=(), replaced=())), **lists}


def from_json(data: Mapping[str, Any]) -> LaunchPlan:
    """The plan from its stored form, of any version, without environments; KeyError, TypeError or ValueError if it is none."""
    known = known_fields(LaunchPlan, data)
    program = Program(**{**known_fields(Program, data["program"]), "args": tuple(data["program"]["args"])})
    values: dict[str, Any] = {
        "program": program,
        "nodes": tuple(map(_node, data["nodes"])),
        "sweep": None,
        "sizes": None,
    }
    values |= {name: tuple(map(_node, data.get(name, ()))) for name in _NODES[1:]}
    if sweep := data.get("sweep"):
        values["sweep"] = Sweep(**{**known_fields(Sweep, sweep), "runs": tuple(sweep["runs"])})
    if sizes := data.get("sizes"):
        values["sizes"] = Sizes(**{**known_fields(Sizes, sizes), "counts": tuple(sizes["counts"])})
    values["earlier"] = tuple(map(tuple, data.get("earlier", ())))
    values |= {name: tuple(data.get(name, ())) for name in ("warnings", "setup", "skipped", "hooks", "keep")}
    return LaunchPlan(**{**known, **values})


def _node(data: Mapping[str, Any]) -> NodePlan:
    known = known_fields(NodePlan, {**data, "env": {}})
    return NodePlan(**{**known, "ranks": range(*known["ranks"]), "secrets": frozenset()})


def redacted(plan: LaunchPlan) -> LaunchPlan:
    """The plan with the values of secret variables replaced, for output and records."""

    def redact(node: NodePlan) -> NodePlan:
        return replace(node, env={name: REDACTED if name in node.secrets else text for name, text in node.env.items()})

    nodes, spares, replaced = (tuple(map(redact, group)) for group in (plan.nodes, plan.spares, plan.replaced))
    return replace(plan, nodes=nodes, spares=spares, replaced=replaced)
