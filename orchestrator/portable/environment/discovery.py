"""
The variables of every node of a launch, discovered from the facts of all of them: network, threads and visible cards. Pure.

When in doubt a variable stays unset, and its reason has the cause: NCCL and gloo then choose for themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.node.facts import NodeFacts
from orchestrator.portable.environment.overrides import contradictions, is_disabled
from orchestrator.portable.environment.rdma import (
    FAR,
    KINDS,
    LAYERS,
    OTHER_LAYER,
    Adapters,
    choose_adapters,
    fault_texts,
    gid_doubt,
    gid_index,
    is_trap,
    needs_ipv6,
    without_unshared_networks,
)
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.environment.sockets import Sockets, choose_interfaces, has_usable_interface
from orchestrator.portable.environment.variable import Origin, Variable
from orchestrator.portable.findings import Finding, Severity, merged

MAX_THREADS = 8  # beside a card: more threads take CPUs from the data loaders and save nothing


@dataclass(frozen=True)
class Discovery:
    """The variables by node, also those that stay unset, and the findings."""

    variables: Mapping[str, Sequence[Variable]]
    findings: Sequence[Finding]

    def environment(self, node: str) -> dict[str, str]:
        """The values to set on a node, without those that the user or the node itself sets."""
        return {
            variable.name: variable.value
            for variable in self.variables.get(node, ())
            if variable.value is not None and variable.origin in (Origin.DISCOVERED, Origin.PRESET)
        }


def discover(facts: Mapping[str, NodeFacts], requests: Mapping[str, NodeRequest]) -> Discovery:
    """The variables of the nodes of `requests`, in their order; without the facts of a node, only those that do not depend on them."""
    known = {node: facts[node] for node in requests if node in facts}
    if len(requests) == 1:
        alone = {node: _of_node(of_node, requests[node]) for node, of_node in known.items()}
        return Discovery(alone, ())
    adapters = {
        node: choose_adapters(of_node, LAYERS.get(requests[node].network))
        for node, of_node in known.items()
        if any(card["kind"] == "cuda" for card in of_node["cards"])
    }
    adapters = _of_common_layer(adapters, known, requests)
    adapters = without_unshared_networks(_of_common_subnet(adapters, known, requests), known)
    settings = {  # with the variables that the node itself sets; NCCL prefers the environment to nccl.conf
        node: replace(requests[node], env={**_nccl_conf(of_node), **of_node["environment"], **requests[node].env})
        for node, of_node in known.items()
    }
    network = _without_traps(_rdma(adapters, settings), adapters, settings, known)
    absent = next((node for node in requests if node not in known), None)
    if absent is not None:
        network = _Rdma((), f"the facts of {absent} are not known")
    rails = {node: _rails(settings[node], adapters.get(node), network) for node in known}
    addresses = {node: request.address for node, request in requests.items()}
    uses_rdma = not network.disables and any(_may_use_rdma(adapters[node], settings[node]) for node in adapters)
    sockets = Sockets({}, network.unset or "")
    if absent is None:
        sockets = choose_interfaces(known, addresses, rails, uses_rdma=uses_rdma)
    findings = [*_preset_findings(known, requests), *_doubts(adapters, settings), *network.findings]
    findings += _no_interface(sockets, known, settings) if absent is None else ()
    findings += _gid_findings(adapters, settings, known) if network.unset is None else ()
    variables: dict[str, Sequence[Variable]] = {}
    for node, of_node in known.items():
        request, chosen = requests[node], adapters.get(node)
        given = settings[node].env
        proposed = list(_sockets(node, sockets, given, uses_nccl=chosen is not None))
        if chosen is not None:
            proposed += _nccl(settings[node], of_node, chosen, network)
        variables[node] = [
            *_of_node(of_node, request, shares_cpus=sockets.share_addresses),
            *(_overridden(variable, request.env, of_node) for variable in proposed),
        ]
        final = request.env if request.has_setup else given
        shown = {name: value for name, value in final.items() if name not in request.private}
        findings += contradictions(node, shown, of_node, chosen)
        findings += _mig_findings(node, of_node)
        findings += _slow_sockets(node, sockets, variables[node])
    return Discovery(variables, merged(findings))


def _of_node(facts: NodeFacts, request: NodeRequest, *, shares_cpus: bool = False) -> list[Variable]:
    """The variables that follow from the node alone; all of them if it has no peers."""
    found = (None if shares_cpus else _threads(facts, request.ranks), _visible_gcus(facts, request.ranks))
    return [_overridden(variable, request.env, facts) for variable in found if variable]


def _threads(facts: NodeFacts, ranks: int) -> Variable | None:
    """OMP_NUM_THREADS by the CPUs per rank; None for the default, 1, and for a single rank, which uses all CPUs."""
    cpus = facts["cpus"]
    usable = min(cpus["usable"], int(cpus["quota"]) if cpus["quota"] else cpus["usable"])
    per_rank = usable // ranks if ranks > 1 else 1
    count = min(per_rank, MAX_THREADS) if facts["cards"] else per_rank
    if count <= 1:
        return None
    reason = f"{usable} usable CPUs for {ranks} ranks"
    reason += f", at most {MAX_THREADS} beside a card" if count < per_rank else ""
    return Variable("OMP_NUM_THREADS", str(count), Origin.DISCOVERED, reason)


def _visible_gcus(facts: NodeFacts, ranks: int) -> Variable | None:
    """TOPS_VISIBLE_DEVICES if one of the first cards is not healthy and there are enough others; else all cards are visible."""
    cards = sorted((card for card in facts["cards"] if card["kind"] == "gcu"), key=lambda card: card["index"])
    faulty = [card["index"] for card in cards if card["health"].get("Health", "").lower() == "false"]
    healthy = [card["index"] for card in cards if card["index"] not in faulty]
    if not faulty or len(healthy) < ranks or healthy[:ranks] == list(range(ranks)):
        return None
    reason = f"card {faulty[0]} reports Health: False, and {ranks} others are healthy"
    return Variable("TOPS_VISIBLE_DEVICES", ",".join(map(str, healthy[:ranks])), Origin.DISCOVERED, reason)


def _mig_findings(node: str, facts: NodeFacts) -> Iterator[Finding]:
    """Warn about cards in MIG mode: a process sees one instance of them only."""
    cards = [str(card["index"]) for card in facts["cards"] if card["mig"]]
    if cards:
        yield Finding(
            Severity.WARN,
            "mig",
            f"MIG is enabled on card {', '.join(cards)}: a rank can use one instance of a card only",
            (node,),
            remedy="for training on whole cards, the administrator turns it off: nvidia-smi -i CARD -mig 0",
        )


def _slow_sockets(node: str, sockets: Sockets, variables: Sequence[Variable]) -> Iterator[Finding]:
    """Warn if the ranks communicate over the interface of the inventory's address, and all nodes share a faster network."""
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    chosen = next((found for found in variables if found.name in names and found.value is not None), None)
    if sockets.faster and chosen is not None and chosen.origin is Origin.DISCOVERED:
        interface = sockets.chosen[node].interface
        text = f"the ranks communicate over {interface['name']}, with {interface['speed']:g} Gb/s; faster: {sockets.faster}"
        remedy = f"give the nodes their addresses in the faster network in the inventory, or set {' and '.join(names)} in env:"
        yield Finding(Severity.WARN, "slow-network", text, (node,), remedy=remedy)


def _no_interface(
    sockets: Sockets, facts: Mapping[str, NodeFacts], requests: Mapping[str, NodeRequest]
) -> Iterator[Finding]:
    """Warn if the interfaces are left to NCCL and gloo, and each node has some from which they choose."""
    nodes = tuple(node for node in facts if "GLOO_SOCKET_IFNAME" not in requests[node].env)
    if sockets.chosen or sockets.share_addresses or not nodes or not all(map(has_usable_interface, facts.values())):
        return
    text = f"NCCL and gloo choose the network interface: {sockets.reason}"
    remedy = "give the nodes addresses in the inventory that are on their interfaces, or set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME in env:"
    yield Finding(Severity.WARN, "interface", text, nodes, remedy=remedy)


def _gid_findings(
    adapters: Mapping[str, Adapters], requests: Mapping[str, NodeRequest], facts: Mapping[str, NodeFacts]
) -> Iterator[Finding]:
    """Warn about RoCE ports over which NCCL may not reach other nodes, unless the user has chosen."""
    remedy = "give each port's interface an address, and install NCCL 2.21 or later, which chooses the GID of each port"
    for node, chosen in adapters.items():
        env = requests[node].env
        if not {"NCCL_IB_GID_INDEX", "NCCL_IB_HCA"} & env.keys() and (doubt := gid_doubt(chosen, facts[node])):
            yield Finding(Severity.WARN, "gid", doubt, (node,), remedy=remedy)


@dataclass(frozen=True)
class _Rdma:
    """The decision on RDMA for the launch: `unset` is the reason why no adapter is named; `disables`, that NCCL must not use any."""

    findings: Sequence[Finding]
    unset: str | None = None
    disables: bool = False


def _of_common_layer(
    adapters: dict[str, Adapters], facts: Mapping[str, NodeFacts], requests: Mapping[str, NodeRequest]
) -> dict[str, Adapters]:
    """The adapters of one link layer, if those chosen on each node alone differ in it and all nodes have another choice."""
    if len({chosen.layer for chosen in adapters.values()} - {None}) > 1:
        for layer in LAYERS.values():
            of_layer = {node: choose_adapters(facts[node], layer) for node in adapters}
            is_allowed = all(LAYERS.get(requests[node].network, layer) == layer for node in adapters)
            if is_allowed and all(chosen.ports for chosen in of_layer.values()):
                return of_layer
    return adapters


def _of_common_subnet(
    adapters: dict[str, Adapters], facts: Mapping[str, NodeFacts], requests: Mapping[str, NodeRequest]
) -> dict[str, Adapters]:
    """The adapters of one InfiniBand subnet, if those chosen on each node alone differ in it and all nodes have ports in one."""
    subnets = Counter(chosen.subnet for chosen in adapters.values() if chosen.subnet)
    if len(subnets) > 1:
        for subnet, _ in subnets.most_common():
            of_subnet = {
                node: choose_adapters(facts[node], LAYERS.get(requests[node].network), subnet) for node in adapters
            }
            if all(chosen.subnet == subnet for chosen in of_subnet.values()):
                return of_subnet
    return adapters


def _may_use_rdma(adapters: Adapters, request: NodeRequest) -> bool:
    """Return whether NCCL may use RDMA on a node, also with adapters that it chooses, or by a plugin."""
    is_possible = bool(adapters.ports) or not adapters.is_certain or adapters.uses_plugin
    return is_possible and request.network != "ethernet" and not _uses_tcp(request)


def _rdma(adapters: Mapping[str, Adapters], requests: Mapping[str, NodeRequest]) -> _Rdma:
    """Decide whether the nodes use RDMA with each other; the requests have the values of the nodes themselves, too."""
    if not adapters:
        return _Rdma((), "no node has CUDA cards")
    if all(_uses_tcp(requests[node]) for node in adapters):
        return _Rdma((), "RDMA is turned off by env: in the inventory, or by the nodes themselves")
    if pinned := [node for node in adapters if requests[node].network == "ethernet"]:
        findings = _mixed_presets(pinned, adapters, requests)
        return _Rdma(findings, "network: ethernet", disables=not findings)
    layers = {chosen.layer: node for node, chosen in adapters.items() if chosen.layer is not None}
    without = [node for node, chosen in adapters.items() if chosen.is_certain and not chosen.ports]
    if not layers:
        node = without[0] if without else next(iter(adapters))
        return _Rdma((), f"{node}: {adapters[node].reason}")
    if len(layers) > 1:
        are_named = all("NCCL_IB_HCA" in requests[node].env for node in adapters)
        return (
            _Rdma((), "the adapters are named by env: in the inventory, or by the nodes themselves")
            if are_named
            else _unconnected(layers)
        )
    findings = [*_unused_ports(adapters), *_separate_subnets(adapters)]
    return _fallback(without, adapters, requests) if without else _Rdma(findings)


def _without_traps(
    network: _Rdma,
    adapters: Mapping[str, Adapters],
    requests: Mapping[str, NodeRequest],
    facts: Mapping[str, NodeFacts],
) -> _Rdma:
    """The decision, but TCP if no adapter is named and NCCL would take an iWARP device by itself."""
    nodes = tuple(
        node
        for node in adapters
        if not _uses_tcp(requests[node])
        and "NCCL_IB_HCA" not in requests[node].env
        and any(is_trap(port, hca) for hca in facts[node]["hcas"] for port in hca["ports"])
    )
    has_others = any(chosen.ports or not chosen.is_certain for chosen in adapters.values())
    if network.disables or has_others or not nodes or any(requests[node].network in LAYERS for node in adapters):
        return network
    text = "its RDMA devices are iWARP, which NCCL opens, and over which it cannot connect: all use TCP"
    remedy = (
        "switch the adapters to RoCE (irdma: the devlink parameter enable_roce), if they and the switches can do it"
    )
    return _Rdma([Finding(Severity.WARN, "network", text, nodes, remedy=remedy)], network.unset, disables=True)


def _separate_subnets(adapters: Mapping[str, Adapters]) -> Iterator[Finding]:
    """Warn if nodes have their InfiniBand ports in different subnets, which only a router connects."""
    subnets = {chosen.subnet: node for node, chosen in adapters.items() if chosen.subnet}
    if len(subnets) > 1:
        (first, node), (second, other_node) = list(subnets.items())[:2]
        text = f"{node} is in the InfiniBand subnet {first} and {other_node} in {second}: only an InfiniBand router connects them"
        remedy = "choose nodes of one subnet with --nodes, or set network: ethernet"
        yield Finding(Severity.WARN, "network", text, tuple(subnets.values()), remedy=remedy)


def _unconnected(layers: Mapping[str, str]) -> _Rdma:
    (layer, node), (other_layer, other_node) = list(layers.items())[:2]
    text = f"{node} has {KINDS.get(layer, layer)} and {other_node} {KINDS.get(other_layer, other_layer)}: NCCL cannot connect them"
    remedy = "choose nodes of one network with --nodes, or set network: ethernet"
    return _Rdma([Finding(Severity.FAIL, "network", text, tuple(layers.values()), remedy=remedy)], text)


def _fallback(without: Sequence[str], adapters: Mapping[str, Adapters], requests: Mapping[str, NodeRequest]) -> _Rdma:
    """The decision if some nodes have RDMA and others have not: TCP on all, unless the inventory pins RDMA."""
    reason = f"{without[0]}: {adapters[without[0]].reason}"
    if any(requests[node].network in LAYERS for node in adapters):
        return _Rdma((), reason)
    text = f"{adapters[without[0]].reason}; the other nodes have RDMA, but all use TCP"
    remedy = "repair the adapter, or choose other nodes with --nodes"
    return _Rdma([Finding(Severity.WARN, "network", text, tuple(without), remedy=remedy)], reason, disables=True)


def _uses_tcp(request: NodeRequest) -> bool:
    """Return whether the user or the node itself turns RDMA off."""
    return is_disabled(request.env) or request.env.get("NCCL_NET", "").lower() == "socket"


def _mixed_presets(
    pinned: Sequence[str], adapters: Mapping[str, Adapters], requests: Mapping[str, NodeRequest]
) -> list[Finding]:
    """The finding on a preset that only some nodes have, unless the others use TCP, too."""
    unpinned = next(
        (node for node in adapters if node not in pinned and _may_use_rdma(adapters[node], requests[node])), None
    )
    if unpinned is None:
        return []
    text = f"network: ethernet, but not on {unpinned}: NCCL cannot connect them"
    remedy = "give all nodes the same network: in the inventory"
    return [Finding(Severity.FAIL, "network", text, tuple(pinned), remedy=remedy)]


def _preset_findings(facts: Mapping[str, NodeFacts], requests: Mapping[str, NodeRequest]) -> Iterator[Finding]:
    """The nodes that lack the network that their preset pins."""
    for node, of_node in facts.items():
        layer = LAYERS.get(requests[node].network)
        adapters = choose_adapters(of_node, layer)
        if layer is not None and adapters.is_certain and not adapters.ports:
            text = f"network: {requests[node].network}, but {adapters.reason}"
            remedy = "repair the adapter, choose other nodes with --nodes, or set network: auto"
            yield Finding(Severity.FAIL, "network", text, (node,), remedy=remedy)


def _doubts(adapters: Mapping[str, Adapters], requests: Mapping[str, NodeRequest]) -> Iterator[Finding]:
    """The nodes whose adapters are left to NCCL, or chosen among two link layers, without a setting of the user."""
    for node, chosen in adapters.items():
        request = requests[node]
        if request.network != "auto" or "NCCL_IB_HCA" in request.env:
            continue
        layers = fault_texts({name: why for name, why in chosen.excluded.items() if why.startswith(OTHER_LAYER)})
        if not chosen.is_certain:
            text = f"NCCL chooses the adapters: {chosen.reason}"
        elif layers:
            text = f"adapters of two link layers are near the cards; NCCL uses those of {KINDS.get(chosen.layer or '', '')}"
        else:
            continue
        remedy = "set network: infiniband or roce in the inventory, or env: NCCL_IB_HCA"
        yield Finding(Severity.WARN, "rdma-choice", text, (node,), "; ".join(layers), remedy)


def _unused_ports(adapters: Mapping[str, Adapters]) -> Iterator[Finding]:
    """The nodes that have fewer usable ports than others."""
    most = max(len(chosen.ports) for chosen in adapters.values())
    for node, chosen in adapters.items():
        if 0 < len(chosen.ports) < most:
            text = f"{len(chosen.ports)} RDMA ports are usable, on other nodes {most}"
            evidence = "; ".join(fault_texts({name: why for name, why in chosen.excluded.items() if why != FAR}))
            yield Finding(
                Severity.WARN, "rdma-ports", text, (node,), evidence, "repair the port, or choose other nodes"
            )


def _rails(request: NodeRequest, adapters: Adapters | None, network: _Rdma) -> frozenset[str]:
    """The interfaces of the adapters that NCCL uses; none if it uses sockets."""
    if adapters is None or network.unset is not None or is_disabled(request.env):
        return frozenset()
    return frozenset(name for port in adapters.ports for name in port.hca["interfaces"])


def _nccl(request: NodeRequest, facts: NodeFacts, adapters: Adapters, network: _Rdma) -> Iterator[Variable]:
    """The variables of NCCL's choice of adapters; the request has the values of the node itself, too."""
    if network.disables:
        origin = Origin.PRESET if request.network == "ethernet" else Origin.DISCOVERED
        yield Variable("NCCL_IB_DISABLE", "1", origin, f"TCP on all nodes: {network.unset}")
        return
    if is_disabled(request.env):
        yield Variable("NCCL_IB_HCA", None, Origin.DISCOVERED, "NCCL_IB_DISABLE is set")
        return
    if request.network in LAYERS:
        reason = f"network: {request.network}: RDMA or an error, instead of TCP without notice"
        yield Variable("NCCL_NET", "IB", Origin.PRESET, reason)
    if network.unset is not None or not adapters.ports:
        yield Variable("NCCL_IB_HCA", None, Origin.DISCOVERED, network.unset or adapters.reason)
        return
    yield Variable("NCCL_IB_HCA", adapters.value, Origin.DISCOVERED, adapters.reason)
    index, reason = gid_index(adapters, facts)
    if request.env.get("NCCL_IB_HCA", adapters.value) != adapters.value:
        index, reason = None, f"NCCL_IB_HCA is not the discovered {adapters.value}"
    yield Variable("NCCL_IB_GID_INDEX", None if index is None else str(index), Origin.DISCOVERED, reason)
    if index is None and "NCCL_IB_GID_INDEX" not in request.env and needs_ipv6(adapters, facts):
        reason = "the ports have no GID of IPv4, which NCCL looks for"
        yield Variable("NCCL_IB_ADDR_FAMILY", "AF_INET6", Origin.DISCOVERED, reason)


def _sockets(node: str, sockets: Sockets, given: Mapping[str, str], *, uses_nccl: bool) -> Iterator[Variable]:
    """The interfaces for NCCL's start-up (and data without RDMA), gloo and torch's RPC; `given` has the values of user and node."""
    names = [*(["NCCL_SOCKET_IFNAME"] if uses_nccl else []), "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]
    attachment = sockets.chosen.get(node)
    if attachment is None:
        yield from (Variable(name, None, Origin.DISCOVERED, sockets.reason) for name in names)
        return
    interface = attachment.interface["name"]
    for name in names:
        value = f"={interface}" if name.startswith("NCCL") else interface
        yield Variable(name, value, Origin.DISCOVERED, sockets.reason)
    if sockets.is_ipv6 and uses_nccl and "NCCL_SOCKET_IFNAME" not in given:
        yield Variable("NCCL_SOCKET_FAMILY", "AF_INET6", Origin.DISCOVERED, "the nodes share no IPv4 subnet")


def _nccl_conf(facts: NodeFacts) -> dict[str, str]:
    """The variables of the node's nccl.conf files. The first line that sets one wins; NCCL reads the user's file first."""
    found: dict[str, str] = {}
    for path in sorted(facts["nccl_conf"], key=lambda path: path == "/etc/nccl.conf"):
        for line in facts["nccl_conf"][path].splitlines():
            name, equals, value = line.partition("#")[0].partition("=")
            if equals and name.strip():
                found.setdefault(name.strip(), value.strip())
    return found


def _overridden(variable: Variable, env: Mapping[str, str], facts: NodeFacts) -> Variable:
    """The variable with the value of the user or of the node, which wins."""
    if variable.name in env:
        origin, value, reason = Origin.INVENTORY, env[variable.name], "env: in the inventory"
    elif variable.name in facts["environment"]:
        origin, value, reason = Origin.NODE, facts["environment"][variable.name], "the environment of the node"
    elif variable.name in (conf := _nccl_conf(facts)):
        origin, value, reason = Origin.NODE, conf[variable.name], "nccl.conf on the node"
    else:
        return variable
    replaces = (
        f"{variable.value} ({variable.origin.value}: {variable.reason})" if variable.value not in (None, value) else ""
    )
    return Variable(variable.name, value, origin, reason, replaces)
