"""The quick check of a launch: over its connections, while the code is sent. A failure refuses the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.errors import PreflightRefused
from orchestrator.inventory.proposed import with_inventory
from orchestrator.launch.preflight import CheckedNode, Reach, survey
from orchestrator.plan.resolve import Facts
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.editable import SentCode, editable_warnings
from orchestrator.portable.checks.quick import check
from orchestrator.portable.environment.discovery import discover
from orchestrator.portable.findings import Finding, Severity
from orchestrator.records.cache.facts import KeptFacts, facts_to_keep
from orchestrator.records.cache.nodes import keep_findings
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.launch.planned import Planned
    from orchestrator.launchers.direct import DirectLauncher
    from orchestrator.plan.plan import LaunchPlan

SOFTWARE: Final = (
    "python", "torch", "torch_cuda", "torch_gcu", "deepspeed", "cuda", "driver", "kernel", "packages_hash",
)  # fmt: skip
PUSH_S = 24 * 3600.0  # a request waits while its connection sends the code


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings, and the answers of the nodes."""

    findings: Sequence[Finding]
    cluster: Cluster


def begin_check(planned: Planned, launcher: DirectLauncher) -> Future[CheckResult]:
    """Begin to check the nodes of an attempt that is connected, in a thread."""
    by_name = {node.name: node for node in planned.plan.nodes}
    kept = planned.kept_facts(home_store())
    future: Future[CheckResult] = Future()

    def reach(name: str) -> Endpoint:
        return launcher.reach(by_name[name])

    def work() -> None:
        try:
            future.set_result(check_result(planned.checked, reach, planned.plan, kept, skipped=planned.skipped))
        except BaseException as error:  # noqa: BLE001  raised where the result is needed
            future.set_exception(error)

    threading.Thread(target=work, name="check", daemon=True).start()
    return future


def check_result(
    nodes: Sequence[CheckedNode], reach: Reach, plan: LaunchPlan, kept: KeptFacts, *, skipped: Collection[str] = ()
) -> CheckResult:
    """
    Query and judge the nodes but those whose facts are kept.

    Kept facts have no code and no `out`, and a failure that they show may be corrected already.
    """
    code = plan.program.folder_on_nodes
    known = kept.read() if code is None else {}
    used = {node.name: known[node.name] for node in nodes if node.name in known and "out" not in node.folders}
    cluster = survey(nodes, reach, code=code, all_names=False, known=used, busy_s=PUSH_S)
    findings = _judged(cluster, plan, skipped)
    if used and any(finding.severity is Severity.FAIL for finding in findings):
        used, cluster = {}, survey(nodes, reach, code=code, all_names=False, busy_s=PUSH_S)
        findings = _judged(cluster, plan, skipped)
    queried = {node: facts for node, facts in facts_to_keep(cluster, findings).items() if node not in used}
    if queried and not skipped:
        kept.update(queried)
    return CheckResult(findings, cluster)


def _judged(cluster: Cluster, plan: LaunchPlan, skipped: Collection[str]) -> list[Finding]:
    """The findings. The Python that answers is that of the inventory, without `setup:` lines."""
    may_differ = not plan.program.runs_python or any(plan.setup and not node.python_folder for node in plan.nodes)
    return check(cluster, skipped, python_may_differ=may_differ)


def facts_of(result: CheckResult, planned: Planned) -> Facts:
    """The part of the result by which the plan is resolved."""
    cluster, plan = result.cluster, planned.plan
    warnings: tuple[str, ...] = ()
    defaults = None
    if plan.code_root:
        answered = [node for node in plan.nodes if node.name in cluster.facts]
        folders = {node.name: cluster.facts[node.name]["software"]["import_folders"] for node in answered}
        paths = {node.name: node.env.get("PYTHONPATH", "") for node in answered}
        code = SentCode(plan.code_root, plan.program.cwd or "", plan.program.import_folder)
        warnings = tuple(editable_warnings(code, paths, folders))
    if not nothing_to_discover(plan):
        found = discover(cluster.facts, cluster.expected)
        defaults = {node.name: found.environment(node.name) for node in plan.nodes}
    return Facts(warnings, defaults=defaults)


def nothing_to_discover(plan: LaunchPlan) -> str:
    """The reason why discovery of network variables has nothing to do for a plan; empty if it has."""
    if plan.by_scheduler:
        return "Slurm chooses the nodes, and the job discovers the variables in its allocation"
    if plan.transport == "local" and len(plan.nodes) > 1:
        return "the ranks are on this machine, so there is no network to choose"
    return ""


def software_versions(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The versions of the programs that training uses, by node, without those that a node lacks."""
    versions = {}
    for node, facts in cluster.facts.items():
        software = facts["software"]
        found = {name: software[name] for name in SOFTWARE}
        found["nccl"] = software["nccl"]["version"] if software["nccl"] else None
        versions[node] = {name: text for name, text in found.items() if text}
    return versions


def record(result: CheckResult, folder: RunFolder) -> None:
    """Record the findings and the versions of the software."""
    folder.write_software(software_versions(result.cluster))
    if result.findings:
        folder.write_findings([finding.to_json() for finding in result.findings])
        keep_findings(folder, result.findings)


def require_passed(findings: Sequence[Finding], inventory: str | None, on_warning: Callable[[str], None]) -> None:
    """
    Report the warnings; `inventory` is the file that the proposed commands need.

    Raises:
        PreflightRefused: a check failed.
    """
    for finding in findings:
        if finding.severity is Severity.WARN:
            on_warning(f"{finding.check}: {finding}")
    failed = [finding.report() for finding in findings if finding.severity is Severity.FAIL]
    if failed:
        lines = ["the check of the nodes failed, so nothing was started", *failed]
        hint = "correct that and look again with `orch check`; --skip NAME leaves out one check, --no-check all of them"
        raise PreflightRefused(with_inventory("\n  ".join(lines), inventory), hint=with_inventory(hint, inventory))
