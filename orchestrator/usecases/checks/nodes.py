"""The facts of the nodes of an inventory, and their summary: equal nodes as one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodesError
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.portable.names.hostlist import fold_by_value
from orchestrator.records.cache.nodes import NodeHistory, node_histories
from orchestrator.records.runs import home_store
from orchestrator.usecases.checks.sides import containers, side_lines
from orchestrator.usecases.inventory import load_inventory

if TYPE_CHECKING:
    from orchestrator.inventory.model import Node
    from orchestrator.node.facts import Hca, NodeFacts

COLUMNS = ("NODES", "CARDS", "RDMA", "CPUS", "MEMORY", "DRIVER", "NCCL", "TORCH", "PYTHON")
HISTORY_COLUMNS = ("NODE", "ATTEMPTS", "FAILURES", "FINDINGS", "SLOW RUNS", "LAST FAILURE")
MOST_RUNS = 3
GIB = 1 << 30
# Facts of which the table is made; the reasons for others that are missing are in the JSON.
SHOWN = frozenset({"cards", "nvidia", "enflame", "hcas", "software"})


def query(
    inventory: str | None, names: str | None, *, with_workdir: bool = True
) -> tuple[dict[str, NodeFacts], NodesError | None]:
    """The facts of the named nodes, or of all, queried `ssh.fanout` at once at most, and the error of those that do not answer."""
    loaded = load_inventory(inventory, names)
    nodes = loaded.select(names)
    transport_to = transport_factory(loaded.transport, loaded.ssh, Terminal())

    def probe(node: Node) -> NodeFacts:
        with Endpoint.connect(transport_to(node), node.python) as endpoint:
            return endpoint.probe([], {"workdir": node.workdir} if with_workdir else {}, None)

    outcomes = map_parallel(nodes, probe, limit=loaded.ssh.fanout)
    facts = {node.name: outcome for node, outcome in zip(nodes, outcomes, strict=True) if isinstance(outcome, dict)}
    return facts, failed_nodes(outcomes)


def sides(inventory: str | None, names: str | None, facts: Mapping[str, NodeFacts]) -> list[str]:
    """Which facts come from inside containers, as sentences."""
    return side_lines(load_inventory(inventory, names).select(names), facts)


def container_names(inventory: str | None, names: str | None) -> dict[str, str]:
    return containers(load_inventory(inventory, names).select(names))


def histories(inventory: str | None, names: str | None) -> dict[str, NodeHistory]:
    """The last four weeks of the named nodes, or of all in the inventory, without those that have neither failed nor been slow."""
    loaded = load_inventory(inventory, names)
    kept = node_histories(home_store())
    found = {node.name: kept[node.address] for node in loaded.select(names) if node.address in kept}
    return {
        name: history for name, history in found.items() if history.failures or history.findings or history.slow_runs
    }


def history_rows(found: Mapping[str, NodeHistory]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, history in found.items():
        kinds = Counter(failure.kind.value for failure in history.failures)
        classes = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        checks = ", ".join(f"{count} {check}" for check, count in history.findings.items())
        last = history.failures[-1].text if history.failures else ""
        rows.append((name, history.attempts, classes or "-", checks or "-", len(history.slow_runs) or "-", last))
    return rows


def suspicions(found: Mapping[str, NodeHistory]) -> list[str]:
    """The nodes that should be left out, each with the evidence."""
    hint = "a launch with --exclude-suspects leaves it out"
    return [f"{suspicion(name, history)}; {hint}" for name, history in found.items() if history.is_suspect]


def suspicion(name: str, history: NodeHistory) -> str:
    runs = ", ".join(failure.run for failure in history.suspected[-MOST_RUNS:])
    return (
        f"{name} is a suspect: {len(history.suspected)} failures of the last 28 days began on it, where chance explains "
        f"{history.expected:.1f} (probability {history.chance:.1g}); the last ones: {runs}"
    )


def summary(facts: Mapping[str, NodeFacts]) -> list[tuple[str, ...]]:
    rows = fold_by_value((name, _row(of_node)) for name, of_node in facts.items())
    return [(names, *row) for row, names in rows.items()]


def unread(facts: Mapping[str, NodeFacts]) -> list[str]:
    """The reasons for facts that the table lacks, each with the nodes."""
    texts = fold_by_value(
        (name, f"{key}: {reason}")
        for name, of_node in facts.items()
        for key, reason in of_node["missing"].items()
        if key.split(".")[0] in SHOWN
    )
    return [f"{names}: {text}" for text, names in texts.items()]


def _row(facts: NodeFacts) -> tuple[str, ...]:
    software = facts["software"]
    nccl = software["nccl"]
    return (
        _cards(facts),
        _counted([text for hca in facts["hcas"] for text in _ports(hca)]),
        str(facts["cpus"]["usable"]),
        f"{round(facts['memory']['total'] / GIB)} GiB",
        software["driver"] or "-",
        (nccl["version"] if nccl else None) or "-",
        software["torch"] or "-",
        software["python"],
    )


def _cards(facts: NodeFacts) -> str:
    """The cards by model; `unknown` if there may be some that could not be counted."""
    is_unknown = not facts["cards"] and any(key.startswith("cards.") for key in facts["missing"])
    names = [f"{card['name'] or card['kind']}{' (MIG)' if card['mig'] else ''}" for card in facts["cards"]]
    return "unknown" if is_unknown else _counted(names)


def _counted(texts: list[str]) -> str:
    """Equal texts as one, with their number."""
    return ", ".join(f"{count} {text}" for text, count in Counter(texts).items()) or "-"


def _ports(hca: Hca) -> list[str]:
    """Link layer and rate in Gb/s of each port, or the reason why it cannot be used."""
    if not hca["usable"]:
        return ["without device file"] * len(hca["ports"])
    return [
        f"{port['link_layer']} {port['rate']:g}"
        if port["state"] == "ACTIVE" and port["rate"]
        else str(port["state"]).lower()
        for port in hca["ports"]
    ]
