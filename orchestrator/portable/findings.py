"""A finding: one fault of a node, an inventory, a variable or a run, with its evidence and remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from orchestrator.portable.names.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(str, Enum):
    """How serious a finding is; FAIL refuses a start."""

    FAIL = "FAIL"
    WARN = "WARN"
    INFO = "INFO"


@dataclass(frozen=True)
class Finding:
    """One finding of a check, of the linter or of a run's supervision."""

    severity: Severity
    check: str
    """The name of the check or rule that found it, such as `nofile`; `--skip` takes it."""
    text: str
    """The fault, in one sentence."""
    nodes: tuple[str, ...] = ()
    """The affected nodes, in node order; empty if it concerns no node in particular."""
    evidence: str = ""
    """The observed values or lines, as they were read."""
    remedy: str = ""
    """The next step."""
    source: str = ""
    """The document or code from which the rule comes; empty if it is a rule of orch."""

    @property
    def fault(self) -> str:
        """The affected nodes, the fault and the evidence."""
        nodes = f"{fold(self.nodes)}: " if self.nodes else ""
        return f"{nodes}{self.text}{f' ({self.evidence})' if self.evidence else ''}"

    def __str__(self) -> str:
        """The fault and the next step on one line, as for a warning."""
        return "; ".join(filter(None, (self.fault, self.remedy)))

    def report(self) -> str:
        """The finding on two lines: severity, check and fault, and the next step."""
        remedy = f"\n      next: {self.remedy}" if self.remedy else ""
        return f"{self.severity.value}  {self.check}: {self.fault}{remedy}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.value, "nodes": list(self.nodes)}


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with the nodes of equal ones in one."""
    nodes: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes.setdefault(replace(finding, nodes=()), []).extend(finding.nodes)
    return [replace(finding, nodes=tuple(dict.fromkeys(of_finding))) for finding, of_finding in nodes.items()]
