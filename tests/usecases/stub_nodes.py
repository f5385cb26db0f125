"""Connections to nodes that answer the requests of a check from given facts, without processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from orchestrator.launch.preflight import CheckedNode, Reach
from orchestrator.portable.checks.cluster import Cluster

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.node.facts import NodeFacts


class StubNode:
    """Answers as an Endpoint; `deadlines` has the deadline of each request by its name, `interfaces` those of `listen`."""

    def __init__(self, facts: NodeFacts, files: dict[str, str]) -> None:
        self.facts = SimpleNamespace(host_id=facts["node"], user="u", python="3.11")
        self.deadlines: dict[str, float] = {}
        self.interfaces: Mapping[str, str] = {}
        self.listens, self.refusal, self.container = False, "", ""
        self.code_digest: Callable[[], str] = lambda: "d"
        self._facts, self._files = facts, files

    def clock_ahead(self, *, wait_s: float) -> tuple[float, float]:
        self.deadlines["clock_ahead"] = wait_s
        return 0.0, 0.0

    def probe(self, names: Sequence[str], folders: Mapping[str, str], code: str | None, *, wait_s: float) -> NodeFacts:
        del names, folders
        self.deadlines["probe"] = wait_s
        entry = (
            None
            if code is None
            else {"path": code, "identity": "", "commit": None, "dirty": None, "digest": self.code_digest()}
        )
        return cast("NodeFacts", {**self._facts, "code": entry})

    def container_state(self) -> None:
        """It answers on the node itself."""

    def problems(
        self, required: Mapping[str, Sequence[str]], env: Mapping[str, str], setup: Sequence[str], *, each_s: float
    ) -> list[tuple[str, str, str]]:
        """Everything that is required is missing."""
        del env, setup, each_s
        kinds = {"paths": "path", "imports": "import", "commands": "command"}
        return [(kinds[kind], name, "missing") for kind, names in required.items() for name in names]

    def listen(self, candidates: Sequence[str], interfaces: Mapping[str, str], *, wait_s: float) -> str:
        self.deadlines["listen"], self.interfaces, self.listens = wait_s, interfaces, True
        return f"{candidates[0]} 29500 {self.facts.host_id}"

    def stop_listening(self, *, wait_s: float) -> None:
        self.deadlines["stop_listening"], self.listens = wait_s, False

    def connect_error(self, address: str, port: int) -> str:
        assert address
        assert port
        return self.refusal

    def write_marker(self, folder: str, token: str, *, wait_s: float) -> str:
        self.deadlines["write_marker"] = wait_s
        self._files[f"{folder}/marker"] = token
        return f"{folder}/marker"

    def find_marker(self, path: str, *, wait_s: float) -> str:
        self.deadlines["find_marker"] = wait_s
        return self._files[path]

    def remove_marker(self, path: str, *, wait_s: float) -> None:
        self.deadlines["remove_marker"] = wait_s
        del self._files[path]


class StubNodes:
    """The nodes of a cluster, in node order."""

    def __init__(self, cluster: Cluster) -> None:
        files: dict[str, str] = {}
        self.by_name = {name: StubNode(facts, files) for name, facts in cluster.facts.items()}
        self.checked = [CheckedNode(name, expected, {}) for name, expected in cluster.expected.items()]

    @property
    def reach(self) -> Reach:
        """Returns the connection to a node."""
        return lambda name: cast("Endpoint", self.by_name[name])

    @property
    def deadlines(self) -> dict[str, float]:
        """The shortest deadline of each request."""
        found = [item for node in self.by_name.values() for item in node.deadlines.items()]
        return {request: min(wait_s for name, wait_s in found if name == request) for request, _ in found}
