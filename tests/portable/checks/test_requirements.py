"""Findings on what an inventory requires."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.portable.checks.quick import check
from orchestrator.portable.findings import Severity
from tests.portable.checks.facts import cluster, cpu_node


def test_required_things_fail_and_paths_in_variables_are_warned_of() -> None:
    problems = [
        ("path", "/data/x", "it does not exist"),
        ("import", "mmcv.ops", "ImportError: libcudart.so.11.0"),
        ("command", "test -d /x", "exit code 1"),
        ("variable", "MODEL_PATH=/m", "it does not exist"),
    ]
    nodes = replace(cluster(cpu_node, 2), problems={"n0": problems, "n1": problems[:1]})
    findings = [(finding.severity, finding.check, finding.text, finding.nodes) for finding in check(nodes)]
    assert findings == [
        (Severity.FAIL, "required", "/data/x: it does not exist", ("n0", "n1")),
        (Severity.FAIL, "required", "import mmcv.ops fails: ImportError: libcudart.so.11.0", ("n0",)),
        (Severity.FAIL, "required", "`test -d /x` fails: exit code 1", ("n0",)),
        (Severity.WARN, "env-paths", "MODEL_PATH=/m: it does not exist", ("n0",)),
    ]
    assert check(nodes, ["required", "env-paths"]) == []
