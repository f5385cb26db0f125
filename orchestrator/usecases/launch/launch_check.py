"""The quick check of a launch: over its connections, while the code is sent. A failure refuses the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.checks.cluster import Cluster
from orchestrator.checks.quick import check
from orchestrator.errors import PreflightRefused
from orchestrator.findings import Finding, Severity
from orchestrator.records.cache.facts import KeptFacts
from orchestrator.records.cache.nodes import keep_findings
from orchestrator.records.store import RunFolder
from orchestrator.usecases.checks.check import facts_to_keep
from orchestrator.usecases.checks.preflight import CheckedNode, Reach, survey
from orchestrator.usecases.proposed import with_inventory

if TYPE_CHECKING:
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


def begin_check(
    nodes: Sequence[CheckedNode], reach: Reach, plan: LaunchPlan, kept: KeptFacts, *, skipped: Collection[str] = ()
) -> Future[CheckResult]:
    """Begin to check the nodes of a launch that is connected, in a thread; nodes whose facts are kept are not queried."""
    future: Future[CheckResult] = Future()

    def work() -> None:
        try:
            future.set_result(_check(nodes, reach, plan, kept, skipped=skipped))
        except BaseException as error:  # noqa: BLE001  raised where the result is needed
            future.set_exception(error)

    threading.Thread(target=work, name="check", daemon=True).start()
    return future


def _check(
    nodes: Sequence[CheckedNode], reach: Reach, plan: LaunchPlan, kept: KeptFacts, *, skipped: Collection[str]
) -> CheckResult:
    """Query and judge the nodes. Kept facts have no code and no `out`, and a failure that they show may be corrected already."""
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


def software_versions(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The versions of the programs that training uses, by node, without those that a node lacks."""
    versions = {}
    for node, facts in cluster.facts.items():
        software = facts["software"]
        found = {name: software[name] for name in SOFTWARE}
        found["nccl"] = software["nccl"]["version"] if software["nccl"] else None
        versions[node] = {name: text for name, text in found.items() if text}
    return versions


def require_passed(findings: Sequence[Finding], folder: RunFolder, on_warning: Callable[[str], None]) -> None:
    """
    Record the findings, and report the warnings.

    Raises:
        PreflightRefused: a check failed.
    """
    if findings:
        folder.write_findings([finding.to_json() for finding in findings])
        keep_findings(folder, findings)
    for finding in findings:
        if finding.severity is Severity.WARN:
            on_warning(f"{finding.check}: {finding}")
    failed = [finding.report() for finding in findings if finding.severity is Severity.FAIL]
    if failed:
        lines = ["the check of the nodes failed, so nothing was started", *failed]
        hint = "correct that and look again with `orch check`; --skip NAME leaves out one check, --no-check all of them"
        inventory = folder.read().inventory.get("file")
        raise PreflightRefused(with_inventory("\n  ".join(lines), inventory), hint=with_inventory(hint, inventory))
