"""Accelerator cards: present, alike on all nodes, without hardware errors, and not in use by other programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from orchestrator.node.facts import Card
from orchestrator.node.rendezvous import is_loopback
from orchestrator.portable.checks.cluster import GIB, Cluster
from orchestrator.portable.checks.majority import difference
from orchestrator.portable.findings import Finding, Severity

BUSY_BYTES = 2 * GIB
COUNT = "cards.count"  # as in node/probe/cards.py
# Xid errors after which a card needs a reset or a replacement: double-bit ECC, row remapping, lost from the bus, NVLink, contained
# and uncontained errors.
FATAL_XIDS = frozenset({48, 63, 64, 74, 79, 94, 95})
RECENT_S = 3600.0
_XID = re.compile(r"Xid \((?P<card>[^)]*)\): (?P<number>\d+)")
# The bits of clocks_event_reasons.active: HW slowdown, SW and HW thermal slowdown, HW power brake.
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
NVLINK = "look at nvidia-smi nvlink -s; with NVSwitch, nvidia-fabricmanager must run in the driver's version"
NVLINK_ERRORS = (
    "look again after some time (nvidia-smi nvlink -e): if they grow, reset the card (nvidia-smi -r) or replace it"
)
NO_GPU_REQUESTED = "the job requested no GPU: set slurm.gres: gpu in the inventory, or --set slurm.gres=gpu"
RESET = "reset the card (nvidia-smi -r) or restart the node; replace the card if the error returns"


def count(cluster: Cluster) -> Iterator[Finding]:
    """Each node must have as many cards as ranks, and all nodes the same number and model; a number that is not known is no fault."""
    nodes = [  # without those that cannot count their cards: the check `incomplete` gives the reason
        node
        for node, facts in cluster.facts.items()
        if cluster.uses_cards(node) and f"{COUNT}.{cluster.expected[node].accelerator}" not in facts["missing"]
    ]
    for node in nodes:
        facts, expected = cluster.facts[node], cluster.expected[node]
        cards = [card for card in facts["cards"] if expected.accelerator in ("auto", card["kind"])]
        fields = "devices" if cards else "accelerator"
        if len(cards) < expected.ranks and not any(card["mig"] for card in cards):
            lost = f"look for a card lost from the bus in the kernel log (dmesg), or correct {fields}: in the inventory"
            is_unrequested = cluster.is_job_without_gpus and not cards and expected.accelerator == "cuda"
            severity = Severity.WARN if expected.accelerator == "auto" else Severity.FAIL
            text = f"fewer cards ({len(cards)}) than ranks ({expected.ranks})"
            state = cluster.containers.get(node)
            if state is not None and not cards and (kind := state.hidden_cards(expected.ranks)):
                text = f"the container has no cards, and its node has {state.host_cards[kind]}"
                lost = cluster.recreate(node, state.card_option(kind)) or lost
            evidence = "; ".join(f"{tool['name']}: {tool['error']}" for tool in facts["tools"] if tool["error"])
            yield Finding(severity, "cards", text, (node,), evidence, NO_GPU_REQUESTED if is_unrequested else lost)
    if differs := difference({node: len(cluster.facts[node]["cards"]) for node in nodes}):
        text = f"the number of cards differs: {differs.text()}"
        remedy = "look for a card lost from the bus in the kernel log (dmesg)"
        yield Finding(Severity.WARN, "cards", text, differs.nodes, remedy=remedy)
    models = {
        node: ", ".join(sorted({card["name"] for card in cluster.facts[node]["cards"] if card["name"]}))
        for node in nodes
    }
    if differs_in_model := difference({node: model for node, model in models.items() if model}):
        text = f"the model of the cards differs: {differs_in_model.text()}"
        remedy = "the slowest card decides the speed of all; choose equal nodes with --nodes"
        yield Finding(Severity.WARN, "cards", text, differs_in_model.nodes, remedy=remedy)


def uuids(cluster: Cluster) -> Iterator[Finding]:
    """No card may be on two nodes: then two names of the inventory lead to one machine. On loopback addresses that is intended."""
    owners: dict[str, list[str]] = {}
    for node in filter(cluster.uses_cards, cluster.facts):
        if is_loopback(cluster.expected[node].address):
            continue
        for card in cluster.facts[node]["cards"]:
            if card["uuid"]:
                owners.setdefault(card["uuid"], []).append(node)
    shared = {tuple(nodes): uuid for uuid, nodes in owners.items() if len(nodes) > 1}
    for nodes, uuid in shared.items():
        names, remedy = tuple(dict.fromkeys(nodes)), "give each node the address of another machine in the inventory"
        yield Finding(Severity.FAIL, "uuids", "these nodes report the same cards", names, uuid, remedy)


def errors(cluster: Cluster) -> Iterator[Finding]:
    """Uncorrectable memory errors, rows that wait for a remapping, and failed self-checks, of the cards of the ranks."""
    for node in filter(cluster.uses_cards, cluster.facts):
        for card in cluster.used_cards(node):
            for key, fault in _ERRORS.items():
                value = card["health"].get(key, "")
                if _number(value) > 0:
                    yield Finding(Severity.FAIL, "ecc", f"{_name(card)}: {fault}", (node,), f"{key}={value}", RESET)
            if card["health"].get("Health", "").lower() == "false":
                text = f"{_name(card)}: the tool reports ill health"
                yield Finding(Severity.FAIL, "ecc", text, (node,), "Health=False", RESET)


_ERRORS = {
    "ecc.errors.uncorrected.volatile.total": "uncorrectable memory errors since the last restart",
    "remapped_rows.pending": "memory rows wait for a remapping, which needs a reset",
    "remapped_rows.failure": "memory rows cannot be remapped any more",
    "retired_pages.pending": "memory pages wait for their retirement, which needs a reset",
}


def xid(cluster: Cluster) -> Iterator[Finding]:
    """
    Errors of NVIDIA's driver in the kernel log.

    It is kept since the start of the node and has the cards of all users, so old ones and those of other cards are warnings only.
    """
    for node, facts in cluster.facts.items():
        recent = datetime.fromtimestamp(facts["clock"]["time"] - RECENT_S, timezone.utc).isoformat()[:19]
        cards = cluster.used_cards(node) if cluster.uses_cards(node) else []
        used = {f"pci:{card['pci'].rpartition('.')[0].lower()}" for card in cards if card["pci"]}
        for line in facts["kernel_messages"]:
            found = _XID.search(line)
            if found is None:
                continue
            number = int(found["number"])
            is_fatal = number in FATAL_XIDS and line[:19] >= recent and found["card"].lower() in used
            severity = Severity.FAIL if is_fatal else Severity.WARN
            yield Finding(severity, "xid", f"Xid {number} of {found['card']} in the kernel log", (node,), line, RESET)


def throttling(cluster: Cluster) -> Iterator[Finding]:
    """Cards whose clock is lowered by heat or by their power supply."""
    for node, facts in cluster.facts.items():
        for card in facts["cards"]:
            health = card["health"]
            value = health.get("clocks_event_reasons.active") or health.get("clocks_throttle_reasons.active", "")
            if _number(value) & THROTTLED:
                text = f"{_name(card)}: the clock is lowered by heat or power"
                temperature = card["health"].get("temperature.gpu", "not known")
                evidence = f"clocks_event_reasons.active={value}, temperature {temperature}"
                remedy = "check the node's cooling and power supplies"
                yield Finding(Severity.WARN, "throttling", text, (node,), evidence, remedy)


def strangers(cluster: Cluster) -> Iterator[Finding]:
    """Programs that use the ranks' cards before the start; orch never ends them."""
    for node in filter(cluster.uses_cards, cluster.facts):
        for card in cluster.used_cards(node):
            for process in card["processes"]:
                owner = "yours" if process["ours"] else f"user {process['user'] or 'not known'}"
                size = "" if process["memory"] is None else f", {process['memory'] / GIB:.1f} GiB"
                is_small = process["memory"] is not None and process["memory"] < BUSY_BYTES
                text = f"{_name(card)} is in use by pid {process['pid']} ({process['name']}, {owner}{size})"
                remedy = "`orch gc` ends strays of yours; ask the owner of others, or leave the node out with --nodes"
                severity = Severity.WARN if is_small else Severity.FAIL
                yield Finding(severity, "strangers", text, (node,), remedy=remedy)


def memory(cluster: Cluster) -> Iterator[Finding]:
    """Card memory that is in use before the start although no process is visible."""
    for node in filter(cluster.uses_cards, cluster.facts):
        for card in cluster.used_cards(node):
            used = card["memory_used"]
            if used is not None and used >= BUSY_BYTES and not card["processes"]:
                text = f"{_name(card)}: {used / GIB:.1f} GiB are in use before the start, by no visible process"
                remedy = (
                    "look for a process in another container; else reset the card (nvidia-smi -r) or restart the node"
                )
                yield Finding(Severity.FAIL, "card-memory", text, (node,), remedy=remedy)


def pcie(cluster: Cluster) -> Iterator[Finding]:
    """The width and generation of each card's PCIe link, compared with those of all cards."""
    for key, title in (("pcie.link.width.current", "PCIe width"), ("pcie.link.gen.max", "PCIe generation")):
        values = {
            f"{node} {_name(card)}": card["health"][key]
            for node, facts in cluster.facts.items()
            for card in facts["cards"]
            if card["health"].get(key, "").isdigit()
        }
        if differs := difference(values):
            nodes = tuple(dict.fromkeys(name.split(" ")[0] for name in differs.nodes))
            remedy = "look for a link that was trained down (lspci -vv, LnkSta), and reseat the card"
            yield Finding(Severity.WARN, "pcie", f"the {title} differs: {differs.text()}", nodes, remedy=remedy)


def nvlink(cluster: Cluster) -> Iterator[Finding]:
    """The links between the cards of a node, compared with those of all nodes with cards of the same models in the same slots."""
    pairs_of = {node: _pairs(cluster.facts[node]["topology"]) for node in cluster.facts if cluster.uses_cards(node)}
    links = {  # such as `28 x NV18`
        node: ", ".join(f"{number} x {kind}" for kind, number in sorted(pairs.items()))
        for node, pairs in pairs_of.items()
    }
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for node, text in links.items():
        if text:
            slots = tuple(sorted(f"{card['name']} {card['pci']}" for card in cluster.facts[node]["cards"]))
            groups.setdefault(slots, {})[node] = text
    for differs in filter(None, map(difference, groups.values())):
        severity = Severity.WARN if differs.majority is None else Severity.FAIL
        fault = f"the links between cards differ: {differs.text()}"
        yield Finding(severity, "nvlink", fault, differs.nodes, remedy=NVLINK)
    for node, pairs in pairs_of.items():
        kind, number = pairs.most_common(1)[0] if pairs else ("", 0)
        total = sum(pairs.values())
        if kind.startswith("NV") and total // 2 < number < total:
            fault = f"some pairs of cards have no {kind}: {links[node]}"
            yield Finding(Severity.WARN, "nvlink", fault, (node,), remedy=NVLINK)


def nvlink_errors(cluster: Cluster) -> Iterator[Finding]:
    """Error counters of NVLink; they count since the driver was loaded, or the counters reset."""
    for node in filter(cluster.uses_cards, cluster.facts):
        facts = cluster.facts[node]
        for card in facts["cards"]:
            counters = {
                key.partition(".")[2]: value
                for key, value in card["health"].items()
                if key.startswith("nvlink.") and _number(value) > 0 and key != "nvlink.links"
            }
            if counters:
                text = f"{_name(card)}: errors on NVLink {card['health'].get('nvlink.links', '')}"
                evidence = ", ".join(f"{name}: {value}" for name, value in counters.items())
                yield Finding(Severity.WARN, "nvlink-errors", text, (node,), evidence, NVLINK_ERRORS)
        if reason := facts["missing"].get("nvlink"):
            text = f"the error counters of NVLink are not known: {reason}"
            yield Finding(Severity.INFO, "nvlink-errors", text, (node,), remedy="run nvidia-smi nvlink -e there")


def _pairs(topology: Mapping[str, Mapping[str, str]]) -> Counter[str]:
    """The number of pairs of cards by the kind of their link."""
    cards = [name for name in topology if name.startswith(("GPU", "GCU"))]
    return Counter(topology[left].get(right, "?") for index, left in enumerate(cards) for right in cards[index + 1 :])


def _name(card: Card) -> str:
    return f"card {card['index']}"


def _number(text: str) -> int:
    """The value of a tool, decimal or hexadecimal; 0 if it is not a number, such as [N/A]."""
    try:
        return int(text.split(maxsplit=1)[0], 0)
    except (ValueError, IndexError):
        return 0
