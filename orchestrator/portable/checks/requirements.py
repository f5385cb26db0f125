"""The paths, modules and commands that the inventory requires on every node, and the paths in its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.portable.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.portable.checks.cluster import Cluster

WORDS = {"path": "{}: {}", "import": "import {} fails: {}", "command": "`{}` fails: {}"}
REMEDIES = {
    "path": "copy it to the node, mount it, or correct checks: paths in the inventory",
    "import": "install it in the Python of the inventory, or set the variables that it needs in env: or setup:",
    "command": "run it with `orch exec`; it is in checks: commands of the inventory",
}


def required(cluster: Cluster) -> Iterator[Finding]:
    """Everything in `checks:` must be there."""
    for node, problems in cluster.problems.items():
        for kind, name, problem in problems:
            if kind in WORDS:
                yield Finding(
                    Severity.FAIL, "required", WORDS[kind].format(name, problem), (node,), remedy=REMEDIES[kind]
                )


def env_paths(cluster: Cluster) -> Iterator[Finding]:
    """A variable whose value is a path names something that exists."""
    for node, problems in cluster.problems.items():
        for kind, name, problem in problems:
            if kind == "variable":
                text = f"{name}: {problem}"
                remedy = "copy it to the node or correct env:, unless the program makes it"
                yield Finding(Severity.WARN, "env-paths", text, (node,), remedy=remedy)
