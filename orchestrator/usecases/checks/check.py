"""Check nodes before a job: query them, judge their answers, and describe both."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError, UsageError
from orchestrator.fanout import map_parallel
from orchestrator.inventory.proposed import with_inventory
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.launch.preflight import REQUIRED_S, CheckedNode, Reach, checked_nodes, survey
from orchestrator.launchers import direct_launcher
from orchestrator.plan.make import make_plan
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.checks.full import MEASURED
from orchestrator.portable.checks.quick import CHECKS, check, most_serious_first
from orchestrator.portable.findings import Finding, Severity
from orchestrator.portable.names.hostlist import fold_by_value
from orchestrator.records.cache.facts import KeptFacts, facts_to_keep
from orchestrator.records.runs import home_store
from orchestrator.run import Program, Request
from orchestrator.usecases.inventory import load_inventory

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.inventory.model import Inventory
    from orchestrator.node.facts import NodeFacts
    from orchestrator.plan.plan import LaunchPlan, NodePlan

STACKS = ("torch", "deepspeed", "torch_gcu")
IMPORTS = "imports"
UNUSED = "check"  # the run id of a plan that is not launched


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: what the nodes answered, and the findings, the most serious first."""

    cluster: Cluster
    findings: Sequence[Finding]
    seconds: float
    skipped: Sequence[str] = ()

    @property
    def has_failed(self) -> bool:
        return any(finding.severity is Severity.FAIL for finding in self.findings)

    def result(self, node: str) -> str:
        """The most serious severity among the findings of a node; `ok` without a failure or a warning."""
        found = {finding.severity for finding in self.findings if node in finding.nodes}
        return next((severity.value for severity in (Severity.FAIL, Severity.WARN) if severity in found), "ok")

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The table: nodes with equal cells are one row."""
        of_node: dict[str, tuple[str, ...]] = dict.fromkeys(self.cluster.expected, ("no answer", "", "", "", ""))
        of_node |= {node: _cells(facts) for node, facts in self.cluster.facts.items()}
        rows = fold_by_value((node, (*cells, self.result(node))) for node, cells in of_node.items())
        return ((nodes, *cells) for cells, nodes in rows.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": {node: self.result(node) for node in self.cluster.expected},
            "findings": [finding.to_json() for finding in self.findings],
            "skipped": list(self.skipped),
            "seconds": round(self.seconds, 3),
        }


COLUMNS = ("NODES", "CARDS", "NETWORK", "CPUS", "MEMORY", "TORCH", "RESULT")


def _cells(facts: NodeFacts) -> tuple[str, ...]:
    models = Counter(str(card["name"] or card["kind"]) for card in facts["cards"])
    ports = Counter(
        f"{port['rate'] or 0:g} Gb/s {port['link_layer']}"
        for hca in facts["hcas"]
        for port in hca["ports"]
        if port["state"] == "ACTIVE"
    )
    return (
        ", ".join(f"{count} x {model}" for model, count in models.items()) or "-",
        ", ".join(f"{count} x {port}" for port, count in ports.items()) or "-",
        str(facts["cpus"]["usable"]),
        f"{facts['memory']['total'] / GIB:.0f} GiB",
        facts["software"]["torch"] or "-",
    )


def check_nodes(
    inventory: str | None, names: str | None, skipped: Sequence[str] = (), *, imports_stacks: bool = False
) -> Checked:
    """
    Query the named nodes, or all of a launch, and judge their answers; UsageError for an unknown check in `skipped`.

    Args:
        imports_stacks: also import torch, DeepSpeed and the vendor's stack, where a node has them.
    """
    require_known(skipped)
    begun = time.monotonic()
    loaded = load_inventory(inventory, names)
    request = Request("ssh", Program("executable", ("true",)), nodes=names)
    plan = make_plan(loaded, request, run_id=UNUSED, bundle=UNUSED)
    folder = Path.cwd()
    code = None if Path.home().is_relative_to(folder) else str(folder)
    with closing(direct_launcher(plan)) as launcher:
        nodes, reach = checked_nodes(plan, is_program_known=False), connected(plan, launcher.reach)
        cluster = survey(nodes, reach, code=code)
        broken = _broken_stacks(cluster, nodes, reach) if imports_stacks and IMPORTS not in skipped else []
    found = most_serious_first([*check(cluster, skipped), *broken])
    findings = [replace(finding, remedy=with_inventory(finding.remedy, inventory)) for finding in found]
    if names is None and "outside" not in skipped:
        findings += [*_outside_inventory(loaded)]
    checked = Checked(cluster, findings, time.monotonic() - begun, skipped)
    if not skipped:
        KeptFacts.of(home_store(), loaded.digest).update(facts_to_keep(cluster, checked.findings))
    return checked


def _broken_stacks(cluster: Cluster, nodes: Sequence[CheckedNode], reach: Reach) -> list[Finding]:
    """The packages of STACKS that a node has installed and whose import fails in the environment of the ranks."""
    answering = [node for node in nodes if node.name in cluster.facts]

    def failed_imports(node: CheckedNode) -> list[tuple[str, str, str]]:
        software = cluster.facts[node.name]["software"]
        installed = [module for module in STACKS if software.get(module)]
        wanted = {"imports": installed}
        return reach(node.name).problems(wanted, node.expected.env, node.setup, each_s=REQUIRED_S) if installed else []

    findings = []
    for node, result in zip(answering, map_parallel(answering, failed_imports, limit=len(answering) or 1), strict=True):
        problems = [("", "the packages", str(result))] if isinstance(result, Exception) else result
        for _, module, problem in problems:
            text, remedy = f"import {module} fails: {problem}", "install versions that fit each other, and the driver"
            findings.append(Finding(Severity.FAIL, IMPORTS, text, (node.name,), remedy=remedy))
    return findings


def _outside_inventory(inventory: Inventory) -> Iterator[Finding]:
    """Nodes that Slurm may choose for a job and that are not in the inventory, as the submission warns of; none without Slurm."""
    if inventory.slurm == SlurmOptions():
        return
    from orchestrator.launchers.slurm.checks import nodes_outside_inventory  # most checks need no Slurm
    from orchestrator.launchers.slurm.host import slurm_host

    request = Request("slurm", Program("executable", ("true",)))
    with suppress(OrchError), ExitStack() as stack:  # the submission reports a login node that is away
        plan = make_plan(inventory, request, run_id=UNUSED, bundle=UNUSED, home=str(Path.home()))
        host = stack.enter_context(closing(slurm_host(plan)))
        for warning in nodes_outside_inventory(host.run, plan, host.environment().get("SBATCH_PARTITION")):
            yield Finding(Severity.WARN, "outside", warning, ())


def connected(plan: LaunchPlan, reach: Callable[[NodePlan], Endpoint]) -> Reach:
    """
    Connect to all nodes: their logins may wait for each other, or for a password, which no deadline of a check allows for.

    Returns:
        The connection to a node, by name. A login that failed is not tried again.
    """
    results = map_parallel(plan.nodes, reach, limit=len(plan.nodes))
    by_name = {node.name: (node, result) for node, result in zip(plan.nodes, results, strict=True)}

    def of_name(name: str) -> Endpoint:
        node, result = by_name[name]
        if isinstance(result, OrchError):
            raise result
        return reach(node)

    return of_name


def known_checks() -> list[str]:
    """The names of all checks, for --skip."""
    return [*CHECKS, "outside", IMPORTS, *MEASURED]


def require_known(skipped: Sequence[str]) -> None:
    """Raise UsageError if there is no check of one of these names."""
    known = known_checks()
    if unknown := [name for name in skipped if name not in known]:
        raise UsageError(f"--skip {unknown[0]}: there is no such check", hint=f"the checks are {', '.join(known)}")
