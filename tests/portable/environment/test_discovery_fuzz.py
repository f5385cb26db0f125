"""Discovery from random facts: it never raises, and names no device that the node lacks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.facts import Hca, Interface, Library, NodeFacts
from orchestrator.portable.environment.discovery import discover
from tests.portable.environment import nodes

NAMES = st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_bond_0", "ibp23s0", "", "=x", "a,b"])
INTERFACES = st.sampled_from(["eth0", "eth1", "lo", "docker0", "ib0", "", "=x", "a,b"])
ADDRESSES = st.sampled_from(
    ["10.0.0.1/24", "10.0.0.2/24", "10.1.0.1/99", "fe80::1/64", "fd00::1/64", "x/8", "127.0.0.1/8"]
)
STATES = st.sampled_from(["ACTIVE", "DOWN", "", None])
LAYERS = st.sampled_from(["InfiniBand", "Ethernet", "", None, "Infiniband?"])
VALUES = st.sampled_from(["mlx5", "=mlx5_0:1", "^", "^=", "=", ",", ":", "3", "-1", "abc", "IB", ""])
SETTINGS = st.sampled_from(
    ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_NET", "NCCL_IB_DISABLE"]
)


@st.composite
def adapters(draw: st.DrawFn) -> Hca:
    made = nodes.hca(draw(NAMES), draw(st.integers(0, 3)))
    made["usable"], made["pci_path"] = draw(st.booleans()), draw(st.sampled_from([None, "", "/pci", made["pci_path"]]))
    made["numa"], made["interfaces"] = draw(st.sampled_from([None, 0, 1])), draw(st.lists(INTERFACES, max_size=2))
    port = made["ports"][0]
    port["state"], port["link_layer"] = draw(STATES), draw(LAYERS)
    port["rate"] = draw(st.sampled_from([None, 0.0, 100.0, 400.0]))
    gids = st.sampled_from(["", "zz", "fe80::1", "0000:0000:0000:0000:0000:ffff:0a00:0001"])
    port["gids"] = [
        {
            "index": index,
            "gid": draw(gids),
            "type": draw(st.sampled_from([None, "RoCE v2"])),
            "interface": draw(INTERFACES),
        }
        for index in range(draw(st.integers(0, 2)))
    ]
    second = port.copy()
    second["port"] = 2
    made["ports"] = [port, second][: draw(st.integers(0, 2))]
    return made


@st.composite
def interfaces(draw: st.DrawFn) -> Interface:
    made = nodes.interface(draw(INTERFACES), *draw(st.lists(ADDRESSES, max_size=2)))
    made["up"], made["speed"] = draw(st.booleans()), draw(st.sampled_from([None, 0.0, 100.0]))
    return made


@st.composite
def facts(draw: st.DrawFn, node: str) -> NodeFacts:
    kinds = draw(st.lists(st.sampled_from(["cuda", "gcu"]), max_size=2))
    cards = [nodes.card(index, kind=kind) for index, kind in enumerate(kinds)]
    for card in cards:
        card["pci_path"], card["mig"] = (
            draw(st.sampled_from([None, "", card["pci_path"]])),
            draw(st.sampled_from([None, True])),
        )
    made = nodes.facts(node, cards=cards, hcas=draw(st.lists(adapters(), max_size=3)))
    made["interfaces"] = draw(st.lists(interfaces(), max_size=3))
    made["topology"] = draw(st.sampled_from([{}, {"GPU0": {"mlx5_0": "PIX"}}, {"GPU0": {"mlx5_0": "?", "": "X"}}]))
    made["missing"] = draw(st.sampled_from([{}, {"hcas.mlx5_0": "EIO"}, {"interfaces": "EPERM"}]))
    nccl: list[Library | None] = [None, {"path": "", "version": "2.18.1", "sha256": None}]
    made["software"]["nccl"] = draw(st.sampled_from(nccl))
    made["cpus"]["usable"], made["cpus"]["quota"] = draw(st.integers(0, 64)), draw(st.sampled_from([None, 0.5, 8.0]))
    return made


@settings(max_examples=150, deadline=None)
@given(
    first=facts("n0"),
    second=facts("n1"),
    env=st.dictionaries(SETTINGS, VALUES, max_size=2),
    network=st.sampled_from(["auto", "infiniband", "roce", "ethernet"]),
    ranks=st.integers(1, 8),
)
def test_no_variable_names_an_absent_device(
    first: NodeFacts, second: NodeFacts, env: dict[str, str], network: str, ranks: int
) -> None:
    found = discover({"n0": first, "n1": second}, nodes.requests(first, second, network=network, ranks=ranks, env=env))
    for of_node in (first, second):
        values = found.environment(of_node["node"])
        active = {port["name"] for port in of_node["hcas"] if any(p["state"] == "ACTIVE" for p in port["ports"])}
        up = {interface["name"] for interface in of_node["interfaces"] if interface["up"]}
        if "NCCL_IB_HCA" in values:
            assert {name.partition(":")[0] for name in values["NCCL_IB_HCA"].removeprefix("=").split(",")} <= active
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            assert values.get(name, "").removeprefix("=") in {*up, ""}
