"""`orch gc`: end strays and remove what old runs left, on the nodes and in the records here; say what was kept and why."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from orchestrator.actions.durations import seconds, worded
from orchestrator.commands.inventory import load_inventory
from orchestrator.console import print_json, print_table, say
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.replies import Hunted, Leftover
from orchestrator.errors import LaunchError, NodeError, NodesError, OrchError, RunNotFound
from orchestrator.fanout import each
from orchestrator.inventory.model import Node
from orchestrator.launchers.slurm import unshared_workdir
from orchestrator.launchers.slurm.host import login_node, slurm_host
from orchestrator.node.endpoint.garbage import Clearing
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.store import RunFolder, Store, home
from orchestrator.transports import way_to
from orchestrator.transports.base import Transport
from orchestrator.transports.ssh.route import PlannedSsh, SshSettings
from orchestrator.transports.terminal import Terminal

YOUNG_S = 60.0  # what has just been started may not have its agent's record yet
HERE = "-"  # in the place of a node's name: the records of this machine
FANOUT = 64
_THOUSAND = 1000
Key = tuple[str, str, str | None, int | None, str]


@dataclass(frozen=True, slots=True)
class Wanted:
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
        """What tells it from other sites, whatever its name."""
        return self.transport, self.node.address, self.node.user, self.node.port, self.node.workdir

    def connect(self, terminal: Terminal) -> Endpoint:
        """Reach it; `terminal` is where it asks what a login asks."""
        way: Callable[[Node | NodePlan], Transport] = way_to(self.transport, self.ssh, terminal)
        return Endpoint.connect(way(self.node), self.node.python)


@dataclass(slots=True)
class Visit:
    """What was found at a site; several names may stand for one machine, which is then looked at once."""

    node: str
    hunted: Hunted = field(default_factory=lambda: Hunted((), (), ""))
    leftovers: Sequence[Leftover] = ()


def gc(older_than: str, inventory: str | None, *, checkpoints: bool, dry_run: bool, as_json: bool) -> int:
    """
    Clear the nodes, then the records of runs of which no node keeps anything.

    Raises:
        NodesError: nodes could not be asked; everything was done on all others.
        LaunchError: something is still there that should have gone.
    """
    wanted = Wanted(seconds("--older-than", older_than), checkpoints, dry_run)
    plans = _plans(Store(home(os.environ)))
    sites = _sites_of_inventory(inventory) if inventory is not None else _sites_of_runs(plans.values())
    if not sites:
        say("no run is recorded here, so no node is known; -i FILE names some")
    claims, terminal = _Claims(), Terminal()
    found = each(
        sites, lambda site: _visit(site, wanted, claims, terminal), limit=max([FANOUT, *(s.ssh.fanout for s in sites)])
    )
    visits = [visit for visit in found if isinstance(visit, Visit)]
    asked = {site.key for site, visit in zip(sites, found, strict=True) if isinstance(visit, Visit)}
    visits.append(Visit(HERE, leftovers=_records(plans, visits, asked, wanted)))
    if as_json:
        _report_json(visits, dry_run=dry_run)
    else:
        _report(visits, wanted)
    _raise_what_failed(found, visits, dry_run=dry_run)
    return 0


class _Claims:
    """Each thing is claimed once, by whoever comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[tuple[str, ...]] = set()

    def first(self, *thing: str) -> bool:
        with self._lock:
            new = thing not in self._taken
            self._taken.add(thing)
            return new


def _plans(store: Store) -> dict[RunFolder, LaunchPlan | None]:
    """All runs recorded here, oldest first; a plan that cannot be read is no plan."""
    plans: dict[RunFolder, LaunchPlan | None] = {}
    for folder in store.all():
        try:
            plans[folder] = folder.read_plan()
        except RunNotFound as exc:
            say(f"warning: {exc}")
            plans[folder] = None
    return plans


def _sites_of_inventory(given: str) -> list[Site]:
    inventory = load_inventory(given, None)
    sites = [Site(node, inventory.transport, inventory.ssh) for node in inventory.nodes]
    login = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh)
    return sites if login is None else [*sites, Site(login, "ssh", inventory.ssh)]


def _sites_of_runs(plans: Iterable[LaunchPlan | None]) -> list[Site]:
    sites = [site for plan in plans if plan is not None for site in _sites_of(plan)]
    return list({site.key: site for site in sites}.values())  # the newest run knows the way best


def _sites_of(plan: LaunchPlan) -> list[Site]:
    """Under Slurm the machine alone that shares the working folder, the login node or this one; the nodes too where none does."""
    ssh = PlannedSsh(**plan.ssh)
    if plan.launcher == "slurm":
        login = login_node(plan.slurm["login"], plan.head, ssh)
        host = Site(plan.head, "local", ssh) if login is None else Site(login, "ssh", ssh)
        if not unshared_workdir.is_apart(plan):
            return [host]
        ssh = PlannedSsh(**unshared_workdir.ssh_to_nodes(plan, slurm_host(plan)))
        return [host, *(Site(node, "ssh", ssh) for node in plan.nodes)]
    return [Site(node, plan.transport, ssh) for node in plan.nodes]


def _visit(site: Site, wanted: Wanted, claims: _Claims, terminal: Terminal) -> Visit:
    """End the strays first: what they write to is then older by no more than a moment, and theirs no longer."""
    visit = Visit(site.node.name)
    with site.connect(terminal) as endpoint:
        machine = (endpoint.facts.host_id, endpoint.facts.user)
        if claims.first(*machine):
            visit.hunted = endpoint.strays(young_s=YOUNG_S, grace_s=GRACE_S, dry_run=wanted.dry_run)
        if claims.first(*machine, site.node.workdir):
            visit.leftovers = endpoint.clear(
                site.node.workdir,
                older_than_s=wanted.older_than_s,
                checkpoints=wanted.checkpoints,
                dry_run=wanted.dry_run,
            )
    return visit


def _records(
    plans: dict[RunFolder, LaunchPlan | None], visits: Sequence[Visit], asked: set[Key], wanted: Wanted
) -> list[Leftover]:
    """The records of runs that are over; one stays for as long as a node has, or may have, the run's folder."""
    stays = {entry.name: visit.node for visit in visits for entry in visit.leftovers if entry.action != "remove"}
    only: dict[str, str] = {}
    for folder, plan in plans.items():
        run = folder.path.name
        missing = [site.node.name for site in _sites_of(plan) if site.key not in asked] if plan is not None else []
        only[run] = f"its folder on {stays[run]} stays" if run in stays else ""
        only[run] = f"{missing[0]} was not asked for its folder" if missing else only[run]
    clearing = Clearing(wanted.older_than_s, checkpoints=wanted.checkpoints, dry_run=wanted.dry_run)
    runs = home(os.environ) / "runs"
    return [Leftover(**{**entry, "kind": "record"}) for entry in clearing.runs(str(runs), only)]


def _report(visits: Sequence[Visit], wanted: Wanted) -> None:
    rows = [row for visit in visits for row in _rows(visit, dry_run=wanted.dry_run)]
    if rows:
        print_table(("NODE", "WHAT", "NAME", "SIZE", "AGE", "DONE"), rows)
    for visit in visits:
        if visit.hunted.note:
            say(f"warning: {visit.node}: {visit.hunted.note}")
    entries = [entry for visit in visits for entry in visit.leftovers]
    freed = sum(entry.bytes for entry in entries if entry.action == "remove")
    young = sum(entry.action == "young" for entry in entries)
    would = "would be " if wanted.dry_run else ""
    say(f"{_size(freed)} {would}freed; {young} younger than {worded(wanted.older_than_s)} left alone")


def _rows(visit: Visit, *, dry_run: bool) -> list[tuple[object, ...]]:
    """What a person wants to see: all but what is simply too young."""
    would = "would be " if dry_run else ""
    rows: list[tuple[object, ...]] = []
    for stray in visit.hunted.strays:
        done = "still alive" if stray.alive and not dry_run else f"{would}ended"
        name = f"{stray.command} (pid {stray.pid}) of {stray.run} on {stray.node}"
        rows.append((visit.node, "stray", name, None, worded(stray.age_s), done))
    for entry in [entry for entry in visit.leftovers if entry.action != "young"]:
        size, age = _size(entry.bytes), worded(entry.age_s)
        rows.append((visit.node, entry.kind, entry.name, size, age, _done(entry, would)))
    for user in visit.hunted.users:
        uid = "?" if user.uid is None else user.uid
        name = f"{user.command or 'process'} (pid {user.pid}) of uid {uid} on {user.card}"
        rows.append((visit.node, "other user", name, None, None, "left alone"))
    return rows


def _done(entry: Leftover, would: str) -> str:
    if entry.action == "fail":
        return f"failed: {entry.why}"
    if entry.action == "remove":
        return f"{would}removed"
    of_them = f" ({_size(entry.checkpoint_bytes)}; --checkpoints removes them)" if "checkpoints" in entry.why else ""
    return f"kept: {entry.why}{of_them}"


def _report_json(visits: Sequence[Visit], *, dry_run: bool) -> None:
    print_json(
        {
            "dry_run": dry_run,
            "strays": [{"at": v.node, **asdict(stray)} for v in visits for stray in v.hunted.strays],
            "other_users": [{"at": v.node, **asdict(user)} for v in visits for user in v.hunted.users],
            "folders": [{"at": v.node, **asdict(entry)} for v in visits for entry in v.leftovers],
            "notes": [{"at": v.node, "note": v.hunted.note} for v in visits if v.hunted.note],
        }
    )


def _raise_what_failed(found: Sequence[Visit | OrchError], visits: Sequence[Visit], *, dry_run: bool) -> None:
    failures = [failure for failure in found if isinstance(failure, OrchError)]
    of_nodes = [failure for failure in failures if isinstance(failure, NodeError)]
    if of_nodes:
        raise NodesError(of_nodes, len(found))
    for failure in failures:
        raise failure
    left = [f"{v.node}: {e.path}: {e.why}" for v in visits for e in v.leftovers if e.action == "fail"]
    if not dry_run:
        left += [f"{v.node}: pid {s.pid} of {s.run} is alive" for v in visits for s in v.hunted.strays if s.alive]
    if left:
        raise LaunchError("\n  ".join(["not everything could be cleared", *left]), hint="look at what holds them there")


def _size(count: float) -> str:
    if count < _THOUSAND:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= _THOUSAND
        if count < _THOUSAND:
            return f"{count:.1f} {unit}"
    return f"{count / _THOUSAND:.1f} TB"
