"""The LaunchPlan: exactly what will happen, as a value that can be printed, stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.inventory.redaction import REDACTED
from orchestrator.run import LauncherName, Program

GRACE_S = 10.0


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


def redacted(plan: LaunchPlan) -> LaunchPlan:
    """The same plan with the values of secret variables replaced, for showing and recording it."""

    def shown(node: NodePlan) -> NodePlan:
        return replace(node, env={name: REDACTED if name in node.secrets else text for name, text in node.env.items()})

    return replace(plan, nodes=tuple(shown(node) for node in plan.nodes))
