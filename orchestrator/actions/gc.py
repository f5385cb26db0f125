"""Garbage collection: end stray processes and remove what old runs left, on the nodes and in the records here."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.actions.inventory import load_inventory
from orchestrator.endpoint.access import PlannedSsh, SshSettings, Terminal, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.replies import Leftover, StrayReport
from orchestrator.errors import LaunchError, NodeError, NodesError, OrchError, RunNotFound
from orchestrator.fanout import each
from orchestrator.inventory.model import Node
from orchestrator.launchers.slurm import unshared_workdir
from orchestrator.launchers.slurm.host import login_node, slurm_host
from orchestrator.node.endpoint.garbage import Clearing
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.store import RunFolder, Store, home

__all__ = ["Garbage", "Leftover", "Limits", "Visit", "collect"]

YOUNG_S = 60.0  # what has just been started may not have its agent's record yet
RECORDS = "-"  # in place of a node's name: the records of this machine
FANOUT = 64
Key = tuple[str, str, str | None, int | None, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """What to remove; without `checkpoints`, run folders that hold some stay."""

    older_than_s: float
    checkpoints: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A node and the way to it; equal keys are the same working folder reached in the same way."""

    node: Node | NodePlan
    transport: str
    ssh: SshSettings

    @property
    def key(self) -> Key:
        """Equal for two names of the same folder."""
        return self.transport, self.node.address, self.node.user, self.node.port, self.node.workdir

    def connect(self, terminal: Terminal) -> Endpoint:
        """Reach it; `terminal` is where a login asks its questions."""
        transport = transport_factory(self.transport, self.ssh, terminal)(self.node)
        return Endpoint.connect(transport, self.node.python)


@dataclass(slots=True)
class Visit:
    """The garbage of one site; a machine with several names is searched once."""

    node: str
    hunted: StrayReport = field(default_factory=lambda: StrayReport((), (), ""))
    leftovers: Sequence[Leftover] = ()


@dataclass(frozen=True, slots=True)
class Garbage:
    """All that was found; each visit says what was removed or ended of it."""

    visits: Sequence[Visit]
    has_sites: bool
    """False if no run is recorded here and no inventory was given, so that no node is known."""
    damaged: Sequence[str]
    """Why plans cannot be read."""
    outcomes: Sequence[Visit | OrchError]
    dry_run: bool

    def raise_failures(self) -> None:
        """
        Report what could not be done.

        Raises:
            NodesError: nodes could not be reached; everything was done on all others.
            LaunchError: something is still there that should have gone.
        """
        failures = [outcome for outcome in self.outcomes if isinstance(outcome, OrchError)]
        of_nodes = [failure for failure in failures if isinstance(failure, NodeError)]
        if of_nodes:
            raise NodesError(of_nodes, len(self.outcomes))
        for failure in failures:
            raise failure
        left = [f"{v.node}: {e.path}: {e.why}" for v in self.visits for e in v.leftovers if e.action == "fail"]
        if not self.dry_run:
            left += [
                f"{v.node}: pid {s.pid} of {s.run} is alive" for v in self.visits for s in v.hunted.strays if s.alive
            ]
        if left:
            raise LaunchError(
                "\n  ".join(["not everything could be cleared", *left]), hint="look at what holds them there"
            )


def collect(limits: Limits, inventory: str | None) -> Garbage:
    """Clear the nodes, then the records of runs of which no node keeps anything."""
    plans, damaged = _plans(Store(home(os.environ)))
    sites = _sites_of_inventory(inventory) if inventory is not None else _sites_of_runs(plans.values())
    claims, terminal = _Claims(), Terminal()
    limit = max([FANOUT, *(site.ssh.fanout for site in sites)])
    outcomes = each(sites, lambda site: _visit(site, limits, claims, terminal), limit=limit)
    visits = [visit for visit in outcomes if isinstance(visit, Visit)]
    reached = {site.key for site, visit in zip(sites, outcomes, strict=True) if isinstance(visit, Visit)}
    visits.append(Visit(RECORDS, leftovers=_records(plans, visits, reached, limits)))
    return Garbage(visits, bool(sites), damaged, outcomes, limits.dry_run)


class _Claims:
    """Lets each machine and each folder be cleared by one site only, the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[tuple[str, ...]] = set()

    def first(self, *claim: str) -> bool:
        with self._lock:
            is_first = claim not in self._taken
            self._taken.add(claim)
            return is_first


def _plans(store: Store) -> tuple[dict[RunFolder, LaunchPlan | None], list[str]]:
    """All runs recorded here, oldest first, with None for a plan that cannot be read; and why it cannot."""
    plans: dict[RunFolder, LaunchPlan | None] = {}
    damaged = []
    for folder in store.all():
        try:
            plans[folder] = folder.read_plan()
        except RunNotFound as exc:
            damaged.append(str(exc))
            plans[folder] = None
    return plans, damaged


def _sites_of_inventory(given: str) -> list[Site]:
    inventory = load_inventory(given, None)
    sites = [Site(node, inventory.transport, inventory.ssh) for node in inventory.nodes]
    login = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh)
    return sites if login is None else [*sites, Site(login, "ssh", inventory.ssh)]


def _sites_of_runs(plans: Iterable[LaunchPlan | None]) -> list[Site]:
    sites = [site for plan in plans if plan is not None for site in _sites_of(plan)]
    return list({site.key: site for site in sites}.values())  # the newest run's way to it is the likeliest to work


def _sites_of(plan: LaunchPlan) -> list[Site]:
    """Under Slurm only the machine that shares the working folder, the login node or this one; all nodes too if it is not shared."""
    ssh = PlannedSsh(**plan.ssh)
    if plan.launcher == "slurm":
        login = login_node(plan.slurm["login"], plan.head, ssh)
        host = Site(plan.head, "local", ssh) if login is None else Site(login, "ssh", ssh)
        if not unshared_workdir.is_apart(plan):
            return [host]
        ssh = PlannedSsh(**unshared_workdir.ssh_to_nodes(plan, slurm_host(plan)))
        return [host, *(Site(node, "ssh", ssh) for node in plan.nodes)]
    return [Site(node, plan.transport, ssh) for node in plan.nodes]


def _visit(site: Site, limits: Limits, claims: _Claims, terminal: Terminal) -> Visit:
    """End the strays first, so that the folders they write to can be cleared as well."""
    visit = Visit(site.node.name)
    with site.connect(terminal) as endpoint:
        machine = (endpoint.facts.host_id, endpoint.facts.user)
        if claims.first(*machine):
            visit.hunted = endpoint.strays(young_s=YOUNG_S, grace_s=GRACE_S, dry_run=limits.dry_run)
        if claims.first(*machine, site.node.workdir):
            visit.leftovers = endpoint.clear(
                site.node.workdir,
                older_than_s=limits.older_than_s,
                checkpoints=limits.checkpoints,
                dry_run=limits.dry_run,
            )
    return visit


def _records(
    plans: dict[RunFolder, LaunchPlan | None], visits: Sequence[Visit], reached: set[Key], limits: Limits
) -> list[Leftover]:
    """Clear the records of runs that are over; a record stays as long as a node has, or may have, the run's folder."""
    stays = {entry.name: visit.node for visit in visits for entry in visit.leftovers if entry.action != "remove"}
    reasons: dict[str, str] = {}
    for folder, plan in plans.items():
        run = folder.path.name
        unreached = [site.node.name for site in _sites_of(plan) if site.key not in reached] if plan is not None else []
        reasons[run] = f"its folder on {stays[run]} stays" if run in stays else ""
        reasons[run] = f"{unreached[0]} was not searched for its folder" if unreached else reasons[run]
    clearing = Clearing(limits.older_than_s, checkpoints=limits.checkpoints, dry_run=limits.dry_run)
    runs = home(os.environ) / "runs"
    return [replace(Leftover(**entry), kind="record") for entry in clearing.runs(str(runs), reasons)]
