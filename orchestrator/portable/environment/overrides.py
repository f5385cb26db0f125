"""Findings on variables that the user or the node sets and that the facts of the node contradict. The user's value is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.node.facts import HcaPort, NodeFacts
from orchestrator.node.rendezvous import matching_interfaces
from orchestrator.portable.environment.rdma import LAYERS, LOOKS_UP_GID_FROM, Adapters, parsed_version
from orchestrator.portable.findings import Finding, Severity

NCCL_ENV = "NCCL User Guide, Environment Variables"


def contradictions(node: str, env: Mapping[str, str], facts: NodeFacts, adapters: Adapters | None) -> Iterator[Finding]:
    """Compare the values set for one node with its facts; `adapters` None: it has no CUDA cards, so NCCL is not used."""
    yield from _absent_interfaces(node, env, facts, uses_nccl=adapters is not None)
    if adapters is None:
        return
    if "hcas" not in facts["missing"]:
        yield from _adapters(node, env.get("NCCL_IB_HCA"), facts, adapters)
    yield from _gid_index(node, env.get("NCCL_IB_GID_INDEX"), facts, adapters)
    if env.get("NCCL_NET", "").lower() == "ib" and adapters.is_certain and not adapters.ports:
        text = f"NCCL_NET=IB, but {adapters.reason}; NCCL ends with an error"
        remedy = "remove NCCL_NET, or repair the adapter"
        yield Finding(Severity.FAIL, "NCCL_NET", text, (node,), adapters.reason, remedy, NCCL_ENV)
    if is_disabled(env) and adapters.ports:
        text = f"NCCL_IB_DISABLE=1 turns off {adapters.reason}; NCCL uses TCP"
        remedy = "remove NCCL_IB_DISABLE if the adapters should be used"
        yield Finding(Severity.WARN, "NCCL_IB_DISABLE", text, (node,), remedy=remedy, source=NCCL_ENV)


def is_disabled(env: Mapping[str, str]) -> bool:
    """Return whether the environment turns RDMA off."""
    return env.get("NCCL_IB_DISABLE", "0") not in ("0", "")


def _absent_interfaces(node: str, env: Mapping[str, str], facts: NodeFacts, *, uses_nccl: bool) -> Iterator[Finding]:
    if "interfaces" in facts["missing"]:
        return
    names = [interface["name"] for interface in facts["interfaces"]]
    up = [interface["name"] for interface in facts["interfaces"] if interface["up"] and interface["addresses"]]
    for variable, exact in (("NCCL_SOCKET_IFNAME", False), ("GLOO_SOCKET_IFNAME", True)):
        value = env.get(variable, "")
        if not value or (variable.startswith("NCCL") and not uses_nccl):
            continue
        pattern = "=" + value if exact else value
        if matching_interfaces(pattern, up):
            continue
        fault = "is down or has no address" if matching_interfaces(pattern, names) else "is not on this node"
        remedy = f"remove {variable}, or set it in the env of this node"
        is_needed = not exact or not uses_nccl  # beside NCCL, few programs use gloo
        yield Finding(
            Severity.FAIL if is_needed else Severity.WARN,
            variable,
            f"{variable}={value} {fault}",
            (node,),
            f"with an address: {', '.join(up)}",
            remedy,
        )


def _adapters(node: str, value: str | None, facts: NodeFacts, adapters: Adapters) -> Iterator[Finding]:
    if not value:
        return
    ports = {f"{hca['name']}:{port['port']}": port for hca in facts["hcas"] for port in hca["ports"]}
    matched = _matching_ports(value, ports)
    present = ", ".join(hca["name"] for hca in facts["hcas"]) or "none"
    setting = f"NCCL_IB_HCA={value}"
    remedy = f"remove it: discovery chooses {adapters.value}" if adapters.ports else "remove it"

    def finding(severity: Severity, fault: str, evidence: str = "") -> Finding:
        return Finding(severity, "NCCL_IB_HCA", f"{setting} {fault}", (node,), evidence, remedy, NCCL_ENV)

    if not any(ports[name]["state"] == "ACTIVE" for name in matched):
        yield finding(Severity.WARN, "matches no active adapter, so NCCL uses TCP", f"adapters: {present}")
        return
    exact = "=" if value.startswith("=") else ""
    absent = [entry for entry in _entries(value) if not _matching_ports(exact + entry, ports)]
    if absent and not value.startswith("^"):
        yield finding(Severity.WARN, f"names {absent[0]}, which is not on this node", f"adapters: {present}")
    if layers := sorted({ports[name]["link_layer"] or "" for name in matched} - {""})[1:]:
        yield finding(
            Severity.WARN, f"matches adapters of two link layers, {LAYERS['infiniband']} and {LAYERS['roce']}"
        )
    excluded = [name for name in matched if adapters.excluded.get(name, adapters.excluded.get(name.partition(":")[0]))]
    if excluded and not layers:
        name = excluded[0].partition(":")[0] if excluded[0] not in adapters.excluded else excluded[0]
        yield finding(Severity.WARN, f"takes {name}: {adapters.excluded[name]}")


def _entries(value: str) -> list[str]:
    return [entry for entry in value.lstrip("^=").split(",") if entry]


def _matching_ports(value: str, ports: Mapping[str, HcaPort]) -> list[str]:
    """The ports, as hca:port, that NCCL takes: entries are prefixes or, after `=`, names; with or without a port."""
    excluded = value.startswith("^")
    exact = value[excluded:].startswith("=")
    entries = [entry.split(":") for entry in _entries(value)]

    def matches(name: str) -> bool:
        hca, port = name.rsplit(":", 1)
        return any(
            (hca == entry[0] if exact else hca.startswith(entry[0])) and (len(entry) == 1 or entry[1] == port)
            for entry in entries
        )

    return [name for name in ports if matches(name) is not excluded]


def _gid_index(node: str, value: str | None, facts: NodeFacts, adapters: Adapters) -> Iterator[Finding]:
    if not value or not adapters.ports:
        return
    library = facts["software"]["nccl"]
    version = parsed_version(library["version"] if library else None)
    setting = f"NCCL_IB_GID_INDEX={value}"
    if adapters.layer == LAYERS["infiniband"]:
        ignored = version is not None and version > LOOKS_UP_GID_FROM and version[:2] != LOOKS_UP_GID_FROM
        effect = "is a setting of RoCE; on InfiniBand NCCL up to 2.21 may fail with it"
        text = f"{setting} {'has no effect on InfiniBand' if ignored else effect}"
        yield Finding(Severity.WARN, "NCCL_IB_GID_INDEX", text, (node,), remedy="remove it", source=NCCL_ENV)
        return
    for port in adapters.ports:
        gid = next((gid for gid in port.port["gids"] if str(gid["index"]) == value), None)
        if gid is None or gid["type"] != "RoCE v2":
            fault = "an empty slot" if gid is None else gid["type"]
            text = f"{setting}, which on {port.name} is {fault}"
            remedy = "remove it: NCCL finds the index from 2.21 on"
            yield Finding(Severity.WARN, "NCCL_IB_GID_INDEX", text, (node,), remedy=remedy, source=NCCL_ENV)
            return
