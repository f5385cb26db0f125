"""Garbage collection: end stray processes and remove the garbage of old runs, on the nodes and in the records here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrator.endpoint.access import (
    PlannedSsh,
    SshSettings,
    Terminal,
    between_prompts,
    container_of,
    transport_factory,
)
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LaunchError, NodeError, NodesError, OrchError, RunNotFound, UsageError
from orchestrator.fanout import map_parallel
from orchestrator.inventory.model import Node
from orchestrator.launchers.slurm import unshared_workdir
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.login_node import login_node
from orchestrator.node.endpoint.garbage import HOLDS_RESULTS, Clearing, new_entry
from orchestrator.node.protocol.runs import GarbageBody, StraysReply
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import expand
from orchestrator.progress import OnProgress, Reporter
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store
from orchestrator.records.store import Store
from orchestrator.usecases.inventory import load_inventory

__all__ = ["HOLDS_RESULTS", "Garbage", "GarbageBody", "Limits", "SiteGarbage", "collect"]

YOUNG_S = 60.0  # the agent of a younger process may not have written its record yet
RECORDS = "-"  # shown as the node of garbage among the records of this machine
FANOUT = 64
Key = tuple[str, str, str | None, int | None, str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the removal; without `results`, run folders that contain results of the program are kept."""

    older_than_s: float
    results: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A node and how to connect to it; sites with equal keys are the same working folder, reached in the same way."""

    node: Node | NodePlan
    transport: str
    ssh: SshSettings

    @property
    def name(self) -> str:
        return f"{self.node.name}:{self.node.workdir}"

    @property
    def key(self) -> Key:
        """The identity of the site, without the node's name."""
        return (
            self.transport,
            self.node.address,
            self.node.user,
            self.node.port,
            self.node.workdir,
            container.name if (container := container_of(self.node)) else "",
        )

    def connect(self, terminal: Terminal) -> Endpoint:
        """Connect to the node; logins that need answers use `terminal`."""
        transport = transport_factory(self.transport, self.ssh, terminal)(self.node)
        return Endpoint.connect(transport, self.node.python)


@dataclass(slots=True)
class SiteGarbage:
    """The garbage of one site, and what was done about it; a machine with several names is searched once."""

    node: str
    stray_report: StraysReply = field(default_factory=lambda: StraysReply(strays=[], users=[], tool_error=""))
    entries: Sequence[GarbageBody] = ()


@dataclass(frozen=True, slots=True)
class Garbage:
    """The garbage of all sites, and the failures."""

    sites: Sequence[SiteGarbage]
    has_sites: bool
    """False if no run is recorded here and no inventory was given, so that no node is known."""
    damaged: Sequence[str]
    """The errors of plans that cannot be read."""
    outcomes: Sequence[SiteGarbage | OrchError]
    dry_run: bool

    def raise_failures(self) -> None:
        """NodesError if nodes could not be reached; LaunchError if garbage could not be removed, or a stray could not be ended."""
        failures = [outcome for outcome in self.outcomes if isinstance(outcome, OrchError)]
        node_failures = [failure for failure in failures if isinstance(failure, NodeError)]
        if node_failures:
            raise NodesError(node_failures, len(self.outcomes))
        for failure in failures:
            raise failure
        left = [f"{g.node}: {e['path']}: {e['why']}" for g in self.sites for e in g.entries if e["action"] == "fail"]
        if not self.dry_run:
            alive = [(g.node, s) for g in self.sites for s in g.stray_report["strays"] if s["alive"]]
            left += [f"{node}: pid {stray['pid']} of {stray['run']} is alive" for node, stray in alive]
        if left:
            message = "\n  ".join(["not everything could be removed", *left])
            raise LaunchError(message, hint="find what prevents it, then orch gc again")


def collect(limits: Limits, inventory: str | None, forget: str | None, on_progress: OnProgress) -> Garbage:
    """
    Collect the garbage on the nodes, then remove the records of runs that have no folder on any node.

    Args:
        forget: host list of nodes that do not exist any more: they are not searched, and no record is kept for them.

    Raises:
        UsageError: no node of that name is known, or it is this machine.
    """
    store = home_store()
    plans, damaged = _plans(store)
    if inventory is not None:
        known = _sites_of_inventory(inventory)
    else:
        known = [site for plan in plans.values() if plan is not None for site in _sites_of(plan)]
    forgotten = _forgotten(forget, known)
    # of equal sites the last one: the connection of the newest run is the likeliest to work
    sites = [site for key, site in {site.key: site for site in known}.items() if key not in forgotten]
    claims, terminal = _Claims(), Terminal()
    limit = max([FANOUT, *(site.ssh.fanout for site in sites)])
    reporter = Reporter("searching", [site.name for site in sites], between_prompts(on_progress))
    search = partial(_collect_site, limits=limits, claims=claims, terminal=terminal)
    outcomes = map_parallel(sites, reporter.around(search), limit=limit)
    found = [outcome for outcome in outcomes if isinstance(outcome, SiteGarbage)]
    reached = {site.key for site, outcome in zip(sites, outcomes, strict=True) if isinstance(outcome, SiteGarbage)}
    reasons = _reasons_to_keep(plans, found, reached, forgotten)
    keys_of = {folder.path.name: {site.key for site in _sites_of(plan)} for folder, plan in plans.items() if plan}
    gone = {run for run, keys in keys_of.items() if keys <= forgotten}
    # the records of runs that are over and have no reason to be kept, and of those whose nodes are all gone
    clearing = Clearing(limits.older_than_s, results=limits.results, dry_run=limits.dry_run)
    cleared = clearing.runs(str(store.runs), reasons, gone)
    entries: list[GarbageBody] = [{**entry, "kind": "record"} for entry in cleared]
    found.append(SiteGarbage(RECORDS, entries=entries))
    return Garbage(found, bool(known), damaged, outcomes, limits.dry_run)


def _forgotten(text: str | None, known: Sequence[Site]) -> set[Key]:
    """The keys of the named sites. By key, because nodes of different inventories may have the same name."""
    try:
        names = set() if text is None else set(expand(text))
    except ValueError as exc:
        raise UsageError(f"--forget {text}: {exc}", hint="as in --forget n0 or --forget 'n[0-3]'") from exc
    remote = [site for site in known if site.transport != "local"]  # this machine exists
    unknown = names - {site.node.name for site in remote}
    if unknown:
        hint = "it names nodes of runs over SSH recorded here, or of the inventory given with -i; the run of a Slurm job is on no single node"
        raise UsageError(f"--forget {text}: no node {', '.join(sorted(unknown))} would be searched", hint=hint)
    return {site.key for site in remote if site.node.name in names}


class _Claims:
    """Assigns each machine and each folder to the first site that claims it; all others skip it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[tuple[str, ...]] = set()

    def first(self, *claim: str) -> bool:
        with self._lock:
            is_first = claim not in self._taken
            self._taken.add(claim)
            return is_first


def _plans(store: Store) -> tuple[dict[RunFolder, LaunchPlan | None], list[str]]:
    """The plans of all runs recorded here, oldest first, None for one that cannot be read; and the errors of those."""
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


def _sites_of(plan: LaunchPlan) -> list[Site]:
    """The sites of a run. Under Slurm: the login node or this machine, and all nodes only if the working folder is not shared."""
    ssh = PlannedSsh.of(plan.ssh)
    if plan.launcher == "slurm":
        login = login_node(plan.slurm["login"], plan.head, ssh)
        host = Site(plan.head, "local", ssh) if login is None else Site(login, "ssh", ssh)
        if not unshared_workdir.is_unshared(plan):
            return [host]
        ssh = PlannedSsh.of(unshared_workdir.ssh_to_nodes(plan, slurm_host(plan)))
        return [host, *(Site(node, "ssh", ssh) for node in plan.nodes)]
    return [Site(node, plan.transport, ssh) for node in plan.used_nodes]


def _collect_site(site: Site, limits: Limits, claims: _Claims, terminal: Terminal) -> SiteGarbage:
    """End the strays first, so that the folders they write to can be removed as well."""
    garbage = SiteGarbage(site.node.name)
    with site.connect(terminal) as endpoint:
        machine = (endpoint.facts.host_id, endpoint.facts.user)
        container = container_of(site.node)
        name = container.name if container else ""  # containers share the host's network
        if claims.first(*machine, "processes", name):
            garbage.stray_report = endpoint.strays(min_age_s=YOUNG_S, grace_s=GRACE_S, dry_run=limits.dry_run)
        if claims.first(*machine, site.node.workdir):
            garbage.entries = endpoint.clear(
                site.node.workdir, older_than_s=limits.older_than_s, results=limits.results, dry_run=limits.dry_run
            )
        if container is not None and claims.first(*machine, "containers"):
            for stray, why in endpoint.clear_containers(YOUNG_S, dry_run=limits.dry_run):
                entry = new_entry("container", f"{stray.name} with {', '.join(stray.runs)}", stray.id)
                entry |= {"age_s": stray.age_s, "action": "fail" if why else "remove", "why": why}
                garbage.entries = [*garbage.entries, entry]
    return garbage


def _reasons_to_keep(
    plans: dict[RunFolder, LaunchPlan | None], found: Sequence[SiteGarbage], reached: set[Key], forgotten: set[Key]
) -> dict[str, str]:
    """The reason for each run to keep its record, that its folder is or may be on a node; empty without a reason."""
    kept_on = {
        entry["name"]: garbage.node for garbage in found for entry in garbage.entries if entry["action"] != "remove"
    }
    reasons: dict[str, str] = {}
    for folder, plan in plans.items():
        run = folder.path.name
        sites = _sites_of(plan) if plan is not None else []
        unreached = [site.node.name for site in sites if site.key not in reached | forgotten]
        reasons[run] = f"its folder on {kept_on[run]} stays" if run in kept_on else ""
        reasons[run] = f"{unreached[0]} was not searched for its folder" if unreached else reasons[run]
    return reasons
