"""Discovery of network variables from the facts of the nodes of a launch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.node.facts import NodeFacts
from orchestrator.portable.environment.discovery import Discovery, discover
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Severity
from tests.portable.environment import nodes
from tests.portable.environment.nodes import cpu, gid, infiniband, interface, requests, roce

SOCKETS = {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
INFINIBAND = {**SOCKETS, "OMP_NUM_THREADS": "8", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}


def discovered(*of_nodes: NodeFacts, network: str = "auto", **env: str) -> Discovery:
    return discover({of_node["node"]: of_node for of_node in of_nodes}, requests(*of_nodes, network=network, env=env))


def reason(found: Discovery, node: str, name: str) -> str:
    (variable,) = [variable for variable in found.variables[node] if variable.name == name]
    return variable.reason


def texts(found: Discovery, severity: Severity) -> list[str]:
    return [f"{','.join(finding.nodes)}: {finding.text}" for finding in found.findings if finding.severity is severity]


def test_infiniband_names_the_adapters_near_the_cards_and_no_gid_index() -> None:
    found = discovered(infiniband(0), infiniband(1))
    assert found.environment("n0") == found.environment("n1") == INFINIBAND
    assert reason(found, "n0", "NCCL_IB_HCA") == (
        "2 active InfiniBand ports near the cards, 400 Gb/s; without mlx5_2: not near a card: for storage or management"
    )
    assert "the network is InfiniBand" in reason(found, "n0", "NCCL_IB_GID_INDEX")
    assert reason(found, "n1", "GLOO_SOCKET_IFNAME") == "all nodes share 10.0.0.0/24"
    assert not found.findings


def test_roce_with_an_old_nccl_gets_the_index_of_each_node() -> None:
    found = discovered(roce(0), roce(1, index=5))
    assert found.environment("n0") == {**INFINIBAND, "NCCL_IB_GID_INDEX": "3"}
    assert found.environment("n1") == {**INFINIBAND, "NCCL_IB_GID_INDEX": "5"}
    assert reason(found, "n1", "NCCL_IB_GID_INDEX").endswith("index 5 is RoCE v2 of the IPv4 address of ens0")
    assert reason(found, "n0", "NCCL_SOCKET_IFNAME").endswith("of 3 shared subnets, the addresses of the inventory")


def test_roce_with_a_new_nccl_gets_no_index() -> None:
    found = discovered(roce(0, nccl="2.21.5"), roce(1))
    assert "NCCL_IB_GID_INDEX" not in found.environment("n0")
    assert reason(found, "n0", "NCCL_IB_GID_INDEX") == "NCCL 2.21.5 finds the index itself, for each adapter"
    assert found.environment("n1")["NCCL_IB_GID_INDEX"] == "3"


def _port_down(node: NodeFacts) -> None:
    node["hcas"][1]["ports"][0]["state"] = "DOWN"


def _renamed_interface(node: NodeFacts) -> None:
    node["interfaces"][0]["name"] = "ens9"


def _other_slot(node: NodeFacts) -> None:
    node["hcas"][0]["ports"][0]["gids"].append(gid(7, "10.1.0.2", "ens0"))
    node["hcas"][1]["ports"][0]["gids"] = [gid(7, "10.1.1.2", "ens1")]


def _no_device_file(node: NodeFacts) -> None:
    for adapter in node["hcas"]:
        adapter["usable"] = False


@pytest.mark.parametrize(
    ("cluster", "change", "expected"),
    [
        (infiniband, _port_down, {"NCCL_IB_HCA": "=mlx5_0"}),
        (
            infiniband,
            _renamed_interface,
            {"NCCL_SOCKET_IFNAME": "=ens9", "GLOO_SOCKET_IFNAME": "ens9", "TP_SOCKET_IFNAME": "ens9"},
        ),
        (roce, _other_slot, {"NCCL_IB_GID_INDEX": "7"}),
        (infiniband, _no_device_file, {"NCCL_IB_HCA": None, "NCCL_IB_DISABLE": "1"}),
    ],
)
def test_one_changed_fact_changes_the_variables_that_depend_on_it(
    cluster: Callable[[int], NodeFacts], change: Callable[[NodeFacts], None], expected: dict[str, str | None]
) -> None:
    before = discovered(cluster(0), cluster(1)).environment("n1")
    changed = cluster(1)
    change(changed)
    after = discovered(cluster(0), changed).environment("n1")
    differing = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert differing == expected


def _without_switches(number: int) -> NodeFacts:
    """A node whose cards share a PCIe root with an adapter of 25 Gb/s, while the InfiniBand adapter is on another root."""
    made = infiniband(number)
    made["hcas"] = [nodes.hca("mlx5_0", 0, layer="Ethernet", rate=25.0), nodes.hca("mlx5_1", 7, rate=200.0)]
    for of_card in made["cards"]:
        of_card["pci_path"] = f"/sys/devices/pci0000:00/0000:00:0{of_card['index'] + 1}.0/0000:01:00.0"
    made["hcas"][0]["pci_path"] = "/sys/devices/pci0000:00/0000:00:05.0/0000:05:00.0"
    return made


@pytest.mark.parametrize("network", ["auto", "infiniband"])
def test_without_pcie_switches_the_fastest_adapters_are_chosen(network: str) -> None:
    found = discovered(_without_switches(0), _without_switches(1), network=network)
    assert found.environment("n0")["NCCL_IB_HCA"] == "=mlx5_1"
    assert not texts(found, Severity.FAIL)


def test_link_layer_that_all_nodes_have_is_chosen() -> None:
    broken = _without_switches(1)
    broken["hcas"][1]["ports"][0]["state"] = "DOWN"
    found = discovered(_without_switches(0), broken)
    assert found.environment("n0")["NCCL_IB_HCA"] == found.environment("n1")["NCCL_IB_HCA"] == "=mlx5_0"
    assert "NCCL uses those of RoCE" in texts(found, Severity.WARN)[0]


def test_port_down_is_a_finding_with_its_evidence() -> None:
    broken = infiniband(1)
    _port_down(broken)
    (finding,) = discovered(infiniband(0), broken).findings
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n1",))
    assert "mlx5_1: port 1 is DOWN" in finding.evidence


def test_all_nodes_use_tcp_if_one_has_no_rdma() -> None:
    lone = infiniband(1)
    lone["hcas"] = []
    found = discovered(infiniband(0), lone)
    assert found.environment("n0")["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in found.environment("n0")
    assert texts(found, Severity.WARN) == ["n1: there is no RDMA device; the other nodes have RDMA, but all use TCP"]


def test_nothing_is_set_for_adapters_that_are_nowhere() -> None:
    first, second = infiniband(0), infiniband(1)
    first["hcas"] = second["hcas"] = []
    found = discovered(first, second)
    assert found.environment("n0") == {**SOCKETS, "OMP_NUM_THREADS": "8"}
    assert reason(found, "n0", "NCCL_IB_HCA") == "n0: there is no RDMA device"
    assert not found.findings


def test_two_kinds_of_network_fail_and_leave_the_adapters_to_nccl() -> None:
    found = discovered(infiniband(0), roce(1))
    assert "NCCL_IB_HCA" not in found.environment("n0")
    assert texts(found, Severity.FAIL) == ["n0,n1: n0 has InfiniBand and n1 RoCE: NCCL cannot connect them"]


@pytest.mark.parametrize("env", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}])
def test_two_kinds_of_network_are_accepted_if_the_user_has_chosen(env: dict[str, str]) -> None:
    found = discovered(infiniband(0), roce(1), **env)
    assert not texts(found, Severity.FAIL)
    assert found.environment("n1").keys().isdisjoint({"NCCL_IB_HCA", "NCCL_IB_DISABLE"})


@pytest.mark.parametrize("conf", [True, False])
@pytest.mark.parametrize("setting", ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket"])
def test_two_kinds_of_network_are_accepted_if_the_nodes_themselves_use_tcp(setting: str, *, conf: bool) -> None:
    cluster = [infiniband(0), roce(1)]
    for of_node in cluster:
        if conf:
            of_node["nccl_conf"] = {"/etc/nccl.conf": f"{setting}\n"}
        else:
            of_node["environment"] = dict([setting.split("=")])
    assert not texts(discovered(*cluster), Severity.FAIL)
    cluster[1]["nccl_conf"], cluster[1]["environment"] = {}, {}  # n1 would use RoCE
    assert texts(discovered(*cluster), Severity.FAIL) == [
        "n0,n1: n0 has InfiniBand and n1 RoCE: NCCL cannot connect them"
    ]


def _with_preset_on_first(second: NodeFacts) -> list[str]:
    """The failures of nodes of which only the first has `network: ethernet`."""
    first = infiniband(0)
    sent = {"n0": NodeRequest("10.0.0.1", 2, network="ethernet"), "n1": NodeRequest("10.0.0.2", 2)}
    return texts(discover({"n0": first, "n1": second}, sent), Severity.FAIL)


def test_preset_ethernet_of_some_nodes_fails_only_if_others_may_use_rdma() -> None:
    lone = infiniband(1)
    assert _with_preset_on_first(lone) == ["n0: network: ethernet, but not on n1: NCCL cannot connect them"]
    lone["hcas"] = []
    assert not _with_preset_on_first(lone)


def test_two_link_layers_near_the_cards_are_in_doubt_until_a_preset_pins_one() -> None:
    mixed = [infiniband(0), infiniband(1)]
    for of_node in mixed:
        of_node["hcas"][1]["ports"][0]["link_layer"] = "Ethernet"
    found = discovered(*mixed)
    assert "NCCL_IB_HCA" not in found.environment("n0")
    assert "both near the cards" in reason(found, "n0", "NCCL_IB_HCA")
    assert "both near the cards" in texts(found, Severity.WARN)[0]
    pinned = discovered(*mixed, network="infiniband").environment("n0")
    assert (pinned["NCCL_IB_HCA"], pinned["NCCL_NET"]) == ("=mlx5_0", "IB")


def test_preset_that_the_facts_contradict_fails() -> None:
    """The active Ethernet adapter for storage does not make it a RoCE network."""
    found = discovered(infiniband(0), infiniband(1), network="roce")
    assert found.environment("n0")["NCCL_NET"] == "IB"
    assert "NCCL_IB_HCA" not in found.environment("n0")
    (text,) = texts(found, Severity.FAIL)
    assert text == "n0,n1: network: roce, but mlx5_0: its link layer is InfiniBand, and 1 more cannot be used"


def test_preset_ethernet_turns_rdma_off() -> None:
    found = discovered(infiniband(0), infiniband(1), network="ethernet")
    assert found.environment("n1")["NCCL_IB_DISABLE"] == "1"
    assert not found.findings


def test_cpu_nodes_get_gloos_interface_and_threads() -> None:
    found = discovered(cpu(0), cpu(1))
    assert found.environment("n0") == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "32",
    }


def test_nodes_with_one_address_are_one_machine() -> None:
    found = discovered(cpu(0), {**cpu(0), "node": "n1"})
    assert found.environment("n0") == {}  # also no threads: the nodes share the CPUs
    assert "2 nodes have the address 10.0.0.1" in reason(found, "n0", "GLOO_SOCKET_IFNAME")


def _with_bond() -> list[NodeFacts]:
    """Two CPU-only nodes with an interface of 25 Gb/s and a bond of 100 Gb/s."""
    cluster = [cpu(0), cpu(1)]
    for number, of_node in enumerate(cluster):
        of_node["interfaces"][0]["speed"] = 25.0
        of_node["interfaces"].append(interface("bond0", f"10.9.0.{number + 1}/16", kind="bond", speed=100.0))
    return cluster


def test_network_of_the_inventory_is_chosen_before_a_faster_one() -> None:
    found = discovered(*_with_bond())
    assert found.environment("n0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert reason(found, "n0", "GLOO_SOCKET_IFNAME").endswith(
        "of 2 shared subnets, the addresses of the inventory; 10.9.0.0/16 is faster: 100 Gb/s"
    )


def test_rail_is_chosen_if_it_has_the_addresses_of_the_inventory() -> None:
    cluster = [roce(0), roce(1)]
    sent = {f"n{number}": NodeRequest(f"10.1.0.{number + 1}", 2) for number in (0, 1)}
    found = discover({of_node["node"]: of_node for of_node in cluster}, sent)
    assert found.environment("n0")["GLOO_SOCKET_IFNAME"] == "ens0"
    assert reason(found, "n0", "GLOO_SOCKET_IFNAME").endswith("of 3 shared subnets, the addresses of the inventory")


def _by_name(*of_nodes: NodeFacts) -> Discovery:
    """Discovery for an inventory with host names instead of addresses."""
    sent = {of_node["node"]: NodeRequest(of_node["node"], 2) for of_node in of_nodes}
    return discover({of_node["node"]: of_node for of_node in of_nodes}, sent)


def test_without_rdma_the_fastest_interface_is_chosen_if_the_names_are_unknown() -> None:
    found = _by_name(*_with_bond())
    assert found.environment("n0")["GLOO_SOCKET_IFNAME"] == "bond0"
    assert reason(found, "n0", "GLOO_SOCKET_IFNAME").endswith("of 2 shared subnets, the fastest: 100 Gb/s")


def test_names_are_resolved_on_other_nodes_if_the_node_has_itself_as_loopback() -> None:
    """As on Debian, whose /etc/hosts has the host's own name at 127.0.1.1."""
    cluster = _with_bond()
    cluster[0]["names"]["resolved"] = {"n0": ["127.0.1.1"], "n1": ["10.0.0.2"]}
    cluster[1]["names"]["resolved"] = {"n0": ["10.0.0.1"], "n1": ["127.0.1.1"]}
    assert _by_name(*cluster).environment("n0")["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    "name", ["docker0", "flannel.1", "cni-podman0", "kube-ipvs0", "vxlan.calico", "weave", "br-0123456789ab"]
)
def test_interfaces_of_containers_are_never_chosen(name: str) -> None:
    cluster = [nodes.facts(f"n{k}", interfaces=[interface(name, f"10.0.0.{k + 1}/24")]) for k in (0, 1)]
    assert "GLOO_SOCKET_IFNAME" not in discovered(*cluster).environment("n0")


def test_first_of_equal_interfaces_is_chosen() -> None:
    cluster = [cpu(0), cpu(1)]
    for number, of_node in enumerate(cluster):
        of_node["interfaces"] = [interface(f"eth{rail}", f"10.{rail + 5}.0.{number + 1}/16") for rail in (0, 1)]
    found = discovered(*cluster)
    assert found.environment("n0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert reason(found, "n0", "GLOO_SOCKET_IFNAME") == "all nodes share 10.5.0.0/16; the first of 2 equal subnets"


def test_only_the_first_address_of_an_interface_counts() -> None:
    """Gloo would connect to the first address, which the other node cannot reach."""
    cluster = [cpu(0), cpu(1)]
    for number, of_node in enumerate(cluster):
        of_node["interfaces"] = [interface("eth0", f"192.168.{number}.1/24", f"10.0.0.{number + 1}/24")]
    assert "GLOO_SOCKET_IFNAME" not in discovered(*cluster).environment("n0")


def test_ipv6_is_used_if_there_is_no_other() -> None:
    cluster = [infiniband(0), infiniband(1)]
    for number, of_node in enumerate(cluster):
        of_node["interfaces"] = [interface("eth0", f"fd00::{number + 1}/64", "fe80::1/64")]
    assert discovered(*cluster).environment("n0")["NCCL_SOCKET_FAMILY"] == "AF_INET6"


def test_family_is_left_to_nccl_if_the_user_names_the_interface() -> None:
    cluster = [infiniband(0), infiniband(1)]
    for number, of_node in enumerate(cluster):
        of_node["interfaces"] = [interface("eth0", f"fd00::{number + 1}/64")]
    assert "NCCL_SOCKET_FAMILY" not in discovered(*cluster, NCCL_SOCKET_IFNAME="eth0").environment("n0")


def test_gid_index_is_left_to_nccl_if_the_user_names_the_adapters() -> None:
    found = discovered(roce(0), roce(1), NCCL_IB_HCA="=mlx5_1")
    assert "NCCL_IB_GID_INDEX" not in found.environment("n0")
    assert reason(found, "n0", "NCCL_IB_GID_INDEX") == "NCCL_IB_HCA is not the discovered =mlx5_0,mlx5_1"


def test_node_without_facts_leaves_the_network_unset() -> None:
    nodes_of = requests(infiniband(0), infiniband(1))
    found = discover({"n0": infiniband(0)}, nodes_of)
    assert found.environment("n0") == {"OMP_NUM_THREADS": "8"}
    assert found.environment("n1") == {}
    assert reason(found, "n0", "NCCL_IB_HCA") == "the facts of n1 are not known"


def test_node_alone_gets_threads_and_no_network() -> None:
    found = discovered(infiniband(0), network="infiniband")
    assert found.environment("n0") == {"OMP_NUM_THREADS": "8"}
    assert [variable.name for variable in found.variables["n0"]] == ["OMP_NUM_THREADS"]
    assert discovered(infiniband(0), OMP_NUM_THREADS="4").environment("n0") == {}


def test_users_value_wins_and_shows_what_it_replaces() -> None:
    found = discovered(infiniband(0), infiniband(1), NCCL_IB_HCA="mlx5", OMP_NUM_THREADS="4")
    assert {"NCCL_IB_HCA", "OMP_NUM_THREADS"}.isdisjoint(found.environment("n0"))
    (variable,) = [variable for variable in found.variables["n0"] if variable.name == "NCCL_IB_HCA"]
    assert variable.value == "mlx5"
    assert variable.replaces.startswith("=mlx5_0,mlx5_1 (discovered: 2 active")
    assert texts(found, Severity.WARN) == [
        "n0,n1: NCCL_IB_HCA=mlx5 matches adapters of two link layers, InfiniBand and Ethernet"
    ]


def test_values_of_the_node_itself_win_and_are_not_exported() -> None:
    site = infiniband(0)
    site["environment"] = {"NCCL_SOCKET_IFNAME": "=eth0"}
    site["nccl_conf"] = {
        "/etc/nccl.conf": "# site\nNCCL_IB_HCA = =mlx5_0\n",
        "/home/ann/.nccl.conf": "NCCL_IB_HCA==mlx5_1\n",
    }
    found = discovered(site, infiniband(1))
    assert {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}.isdisjoint(found.environment("n0"))
    values = {variable.name: variable.value for variable in found.variables["n0"]}
    assert (values["NCCL_IB_HCA"], values["NCCL_SOCKET_IFNAME"]) == ("=mlx5_1", "=eth0")
    assert reason(found, "n0", "NCCL_IB_HCA") == "nccl.conf on the node"
    assert reason(found, "n0", "NCCL_SOCKET_IFNAME") == "the environment of the node"


@pytest.mark.parametrize(
    ("cluster", "setting", "severity", "text"),
    [
        (infiniband, {"NCCL_IB_HCA": "=mlx5_0,mlx5_9"}, Severity.WARN, "names mlx5_9, which is not on this node"),
        (infiniband, {"NCCL_IB_HCA": "=mlx5_9"}, Severity.WARN, "matches no active adapter, so NCCL uses TCP"),
        (infiniband, {"NCCL_IB_HCA": "=mlx5_2"}, Severity.WARN, "takes mlx5_2: not near a card"),
        (infiniband, {"NCCL_IB_GID_INDEX": "3"}, Severity.WARN, "has no effect on InfiniBand"),
        (roce, {"NCCL_IB_GID_INDEX": "2"}, Severity.WARN, "which on mlx5_0 is IB/RoCE v1"),
        (roce, {"NCCL_IB_GID_INDEX": "9"}, Severity.WARN, "which on mlx5_0 is an empty slot"),
        (infiniband, {"NCCL_IB_DISABLE": "1"}, Severity.WARN, "turns off 2 active InfiniBand ports"),
        (infiniband, {"NCCL_SOCKET_IFNAME": "ib0"}, Severity.FAIL, "NCCL_SOCKET_IFNAME=ib0 is not on this node"),
        (infiniband, {"GLOO_SOCKET_IFNAME": "eth"}, Severity.WARN, "GLOO_SOCKET_IFNAME=eth is not on this node"),
        (cpu, {"GLOO_SOCKET_IFNAME": "eth"}, Severity.FAIL, "GLOO_SOCKET_IFNAME=eth is not on this node"),
    ],
)
def test_setting_that_the_facts_contradict_is_a_finding(
    cluster: Callable[[int], NodeFacts], setting: dict[str, str], severity: Severity, text: str
) -> None:
    (found,) = texts(discovered(cluster(0), cluster(1), **setting), severity)
    assert found.startswith("n0,n1: ")
    assert text in found


def test_matching_prefixes_and_the_discovered_list_are_no_findings() -> None:
    setting = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "eth", "NCCL_NET": "IB"}
    assert not discovered(infiniband(0), infiniband(1), **setting).findings


def test_faulty_gcu_is_hidden_if_there_are_enough_others() -> None:
    made = nodes.facts("n0", cards=[nodes.card(index, kind="gcu", health=str(index != 1)) for index in range(3)])
    request = {"n0": NodeRequest("n0", 2)}
    assert discover({"n0": made}, request).environment("n0")["TOPS_VISIBLE_DEVICES"] == "0,2"
    made["cards"][1]["health"] = {}
    assert "TOPS_VISIBLE_DEVICES" not in discover({"n0": made}, request).environment("n0")


def test_mig_is_a_finding() -> None:
    made = infiniband(0)
    made["cards"][1]["mig"] = True
    assert "MIG is enabled on card 1" in texts(discovered(made, infiniband(1)), Severity.WARN)[0]


def test_unreadable_adapters_leave_them_to_nccl() -> None:
    made = infiniband(1)
    made["hcas"], made["missing"] = [], {"hcas": "Permission denied"}
    found = discovered(infiniband(0), made)
    assert "NCCL_IB_HCA" not in found.environment("n1")
    assert "NCCL_IB_DISABLE" not in found.environment("n0")
    assert "Permission denied" in reason(found, "n1", "NCCL_IB_HCA")


def test_faster_interface_is_named_if_the_user_turns_rdma_off() -> None:
    cluster = [roce(0), roce(1)]
    for of_node in cluster:
        of_node["interfaces"][0]["speed"], of_node["interfaces"][1]["speed"] = 25.0, 200.0
    found = discovered(*cluster, NCCL_IB_DISABLE="1")
    assert found.environment("n0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_IB_HCA" not in found.environment("n0")
    assert reason(found, "n0", "NCCL_SOCKET_IFNAME").endswith("10.1.1.0/24 is faster: 400 Gb/s")
    [warning] = [finding for finding in found.findings if finding.check == "slow-network"]
    assert (warning.severity, warning.nodes) == (Severity.WARN, ("n0", "n1"))
    assert warning.text.startswith("the ranks communicate over eth0, with 25 Gb/s; faster: ")
    assert warning.text.endswith(" (10.1.1.0/24, 400 Gb/s)")
    chosen_by_user = discovered(*cluster, NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="=eth0").findings
    assert "slow-network" not in {finding.check for finding in chosen_by_user}
