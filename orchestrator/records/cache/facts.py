"""The facts of good nodes, kept for a few minutes: the next launch need not query these nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.records.files import json_object, write_file
from orchestrator.records.store import Store

if TYPE_CHECKING:
    from orchestrator.node.facts import NodeFacts
    from orchestrator.portable.checks.cluster import Cluster
    from orchestrator.portable.findings import Finding

KEPT_S = 300.0


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """The facts of the nodes of one inventory that were good a short time ago, so that the next launch need not query them."""

    path: Path

    @classmethod
    def of(
        cls, store: Store, inventory_digest: str, variables: Mapping[str, str | None] = MappingProxyType({})
    ) -> KeptFacts:
        """
        The facts for launches with this inventory and these variables of --env.

        Nodes whose facts are kept have the paths of the inventory; whether they have those of other variables is not known.
        """
        paths = sorted((name, value) for name, value in variables.items() if (value or "").startswith("/"))
        suffix = f"-{sha256(json.dumps(paths).encode()).hexdigest()[:12]}" if paths else ""
        return cls(store.path / "facts" / f"{inventory_digest}{suffix}.json")

    def read(self) -> dict[str, NodeFacts]:
        """The facts by node that are at most KEPT_S old."""
        from orchestrator.node.facts import read_facts  # only launches over SSH read them

        try:
            return {node: read_facts(entry["facts"]) for node, entry in self._entries().items()}
        except (ValueError, KeyError):  # another version wrote them
            return {}

    def update(self, queried: Mapping[str, NodeFacts | None]) -> None:
        """Keep the facts of nodes that were just queried; None forgets a node's. The facts of other nodes become no younger."""
        now = time.time()
        new = {node: {"time": now, "facts": facts} for node, facts in queried.items() if facts is not None}
        old = {node: entry for node, entry in self._entries().items() if node not in queried}
        with suppress(OSError):  # a full disk: the facts can be had again
            write_file(self.path, json.dumps({**old, **new}), sync=False)

    def _entries(self) -> dict[str, Any]:
        """The entries that are at most KEPT_S old, by node."""
        now = time.time()
        try:
            return {node: entry for node, entry in json_object(self.path).items() if 0 <= now - entry["time"] < KEPT_S}
        except (OSError, ValueError, KeyError, TypeError):  # there are none, or another version wrote them
            return {}


def facts_to_keep(cluster: Cluster, findings: Sequence[Finding]) -> dict[str, NodeFacts | None]:
    """
    The facts that the next launches may use; None for a node that they must query.

    Those are nodes with a finding or without an answer, and nodes with cards, which others may begin to use. The code and the
    folder of checkpoints are left out: another launch may have others.
    """
    named = {node for finding in findings for node in finding.nodes}
    return {
        node: {**facts, "code": None, "disks": [disk for disk in facts["disks"] if disk["use"] != "out"]}
        if facts is not None and node not in named and not facts["cards"]
        else None
        for node, facts in ((node, cluster.facts.get(node)) for node in cluster.expected)
    }
