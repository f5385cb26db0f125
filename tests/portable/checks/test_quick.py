"""Every quick check on facts in which one value is wrong: it names the node and the cause, and nothing else is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.portable.checks.cluster import GIB, Cluster, Rendezvous, SharedFolder, host_names
from orchestrator.portable.checks.majority import difference
from orchestrator.portable.checks.quick import CHECKS, check
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Finding, Severity
from tests.portable.checks.facts import Change, cluster, cpu_node, disk, gpu_node
from tests.portable.environment.nodes import interface

FAIL, WARN = Severity.FAIL, Severity.WARN
STRANGER = {"pid": 4711, "name": "python", "user": "eve", "memory": 30 * GIB, "ours": False}
MPS_SERVER = {**STRANGER, "name": "nvidia-cuda-mps-server", "memory": 30 << 20}
XID = "1970-01-01T00:00:01Z NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."


def _brief(findings: list[Finding]) -> list[tuple[Severity, str, tuple[str, ...]]]:
    return [(finding.severity, finding.check, finding.nodes) for finding in findings]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_plain_machines_have_no_finding(count: int) -> None:
    assert check(cluster(cpu_node, count)) == []
    assert check(cluster(gpu_node, count, "cuda", 2)) == []


def _set(*path: str | int) -> Callable[[object], Change]:
    def with_value(value: object) -> Change:
        def change(facts: Any) -> None:  # any part of the facts
            for key in path[:-1]:
                facts = facts[key]
            facts[path[-1]] = value

        return change

    return with_value


def _tool(seconds: float, error: str | None) -> dict[str, object]:
    return {"name": "nvidia-smi", "seconds": seconds, "error": error}


def _out(*, free: int, checkpoint: int) -> Change:
    entry = disk("out", "/data/run", free=free)
    return lambda facts: facts["disks"].append({**entry, "checkpoint": checkpoint})


def _health(key: str, value: str) -> Change:
    return _set("cards", 1, "health", key)(value)


FAULTS: list[tuple[str, Severity, str, Change]] = [
    ("cards", FAIL, "fewer cards (1) than ranks (2)", lambda facts: facts["cards"].pop()),
    ("ecc", FAIL, "card 1: uncorrectable", _health("ecc.errors.uncorrected.volatile.total", "2")),
    ("ecc", FAIL, "card 1: memory rows", _health("remapped_rows.pending", "1")),
    ("xid", FAIL, "Xid 79 of PCI:0000:01:00", _set("kernel_messages")([XID])),
    ("nvlink-errors", WARN, "card 1: errors on NVLink ", _health("nvlink.CRC Errors", "1204")),
    (
        "nvlink-errors",
        Severity.INFO,
        "the error counters of NVLink are not known: nv",
        _set("missing")({"nvlink": "nvidia-smi: exit code 9"}),
    ),
    ("throttling", WARN, "card 1: the clock is lowered", _health("clocks_event_reasons.active", "0x0000000000000040")),
    ("strangers", FAIL, "card 0 is in use by pid 4711 (python, user eve", _set("cards", 0, "processes")([STRANGER])),
    ("strangers", WARN, "card 0 is in use by pid 4711 (nvidia-cuda-mps", _set("cards", 0, "processes")([MPS_SERVER])),
    ("card-memory", FAIL, "card 0: 3.0 GiB are in use", _set("cards", 0, "memory_used")(3 * GIB)),
    ("pcie", WARN, "8 on n2 card 1; 16 on the other 7", _health("pcie.link.width.current", "8")),
    ("nvlink", FAIL, "1 x SYS on n2; 1 x NV18 on the other 3", _set("topology", "GPU0", "GPU1")("SYS")),
    ("incomplete", FAIL, "disks.workdir cannot be read: no", _set("missing")({"disks.workdir": "no answer in 5 s"})),
    ("incomplete", WARN, "software cannot be read: no", _set("missing")({"software": "no answer in 15 s"})),
    ("incomplete", WARN, "cards.nvidia cannot be", _set("missing")({"cards.nvidia": "nvidia-smi: exit code 9"})),
    ("tools", FAIL, "nvidia-smi took more than 5 s", _set("tools", 0)(_tool(10.0, "killed after 10 s"))),
    ("tools", WARN, "nvidia-smi took more than 5 s", _set("tools", 0)(_tool(7.5, None))),
    ("rdma", WARN, "mlx5_1: the device file is missing", _set("hcas", 1, "usable")(False)),
    ("firmware", WARN, "22.0 on n2 mlx5_0; 28.1 on the other 7", _set("hcas", 0, "firmware")("22.0")),
    ("ports", FAIL, "mlx5_1 is DOWN", _set("hcas", 1, "ports", 0, "state")("DOWN")),
    ("ports", FAIL, "200 Gb/s InfiniBand on n2", _set("hcas", 1, "ports", 0, "rate")(200.0)),
    (
        "link-errors",
        WARN,
        "mlx5_1 has counted link errors",
        _set("hcas", 1, "ports", 0, "counters")({"link_downed": 3}),
    ),
    ("names", FAIL, "n0 resolves to the loopback", _set("names", "resolved", "n0")(["127.0.1.1"])),
    ("names", WARN, "n0 resolves differently: 10.9.9.9 on n2", _set("names", "resolved", "n0")(["10.9.9.9"])),
    ("names", WARN, "n0 does not resolve", _set("names", "resolved", "n0")([])),
    ("disk", FAIL, "workdir is full: 0 MiB left", _set("disks", 0)(disk("workdir", "/data", free=0))),
    ("disk", FAIL, "tmp has 3 inodes left", _set("disks", 1, "inodes_free")(3)),
    ("disk", FAIL, "workdir /data cannot be written", _set("disks", 0, "writable")(False)),
    (
        "disk",
        WARN,
        "workdir has 512 GiB free, and its newest checkpoint has 300",
        _set("disks", 0, "checkpoint")(300 * GIB),
    ),
    (
        "disk",
        FAIL,
        "out has 40 GiB free, and its newest checkpoint has 41 GiB",
        _out(free=40 * GIB, checkpoint=41 * GIB),
    ),
    (
        "disk",
        WARN,
        "out has 50 GiB free, and its newest checkpoint has 41 GiB",
        _out(free=50 * GIB, checkpoint=41 * GIB),
    ),
    ("shm", WARN, "/dev/shm has 0.0625 GiB", _set("disks", 2)(disk("shm", "/dev/shm", total=GIB // 16))),
    ("nofile", FAIL, "a process may open 256 files", _set("limits", "nofile")({"soft": 256, "hard": 256})),
    (
        "disk",
        FAIL,
        "workdir: /data is writable for everyone",
        _set("disks", 0, "refused")("/data is writable for everyone"),
    ),
    (
        "fsize",
        FAIL,
        "a file may have 512 KiB; an agent needs 1024",
        _set("limits", "fsize")({"soft": 1 << 19, "hard": None}),
    ),
    ("nproc", WARN, "the user may have 400 processes", _set("limits", "nproc")({"soft": 400, "hard": 400})),
    ("memlock", WARN, "may lock 6.1e-05 GiB", _set("limits", "memlock")({"soft": 65536, "hard": 65536})),
    ("clock", WARN, "no time daemon", _set("clock", "synchronized")(False)),
    ("versions", FAIL, "torch differs: 2.5.1 on n2; 2.6.0 on the other 3", _set("software", "torch")("2.5.1")),
    ("versions", FAIL, "driver differs: not installed on n2", _set("software", "driver")(None)),
    ("python", FAIL, "3.10 on n2; 3.11 on the other 3", _set("software", "python")("3.10.14")),
    ("nccl", FAIL, "2.20.5 on n2", _set("software", "nccl", "version")("2.20.5")),
    ("nccl", FAIL, "sha256 bbbbbbbbbbbb on n2", _set("software", "nccl", "sha256")("b" * 64)),
]


@pytest.mark.parametrize(("name", "severity", "text", "change"), FAULTS, ids=[f"{f[0]}-{f[2][:20]}" for f in FAULTS])
def test_the_check_names_the_node_and_the_cause(name: str, severity: Severity, text: str, change: Change) -> None:
    nodes = cluster(gpu_node, 4, "cuda", 2)
    for facts in nodes.facts.values():
        facts["clock"]["synchronized"] = True
    change(nodes.facts["n2"])
    found = check(nodes)
    assert (severity, name, ("n2",)) in _brief(found), found
    assert text in found[0].text
    assert all(finding.check == name for finding in found), found
    assert all(finding.remedy for finding in found)
    assert not check(nodes, [name])


def test_model_of_cards_that_is_not_known_is_not_another_model() -> None:
    """A node without the vendor's tool counts its cards by their device files."""
    nodes = cluster(gpu_node, 4, "cuda", 2)
    for card in nodes.facts["n2"]["cards"]:
        card["name"] = None
    assert [finding for finding in check(nodes) if finding.check == "cards"] == []


def test_number_of_cards_that_is_not_known_is_a_warning_and_not_taken_for_zero() -> None:
    nodes = cluster(cpu_node, 2, "gcu", 2)
    nodes.facts["n0"]["missing"] = {"cards.count.gcu": "efsmi is not in this container"}
    found = [(finding.nodes, finding.severity, finding.text) for finding in check(nodes) if "card" in finding.text]
    assert found == [
        (("n1",), FAIL, "fewer cards (0) than ranks (2)"),
        (("n0",), WARN, "cards.count.gcu cannot be read: efsmi is not in this container"),
    ]


def test_packages_that_differ_or_are_missing_are_named_and_additional_ones_are_not() -> None:
    nodes = cluster(cpu_node, 3)
    software = nodes.facts["n1"]["software"]
    software["packages"] = {"torch": "2.6.0", "numpy": "1.26.0", "extra": "1"}
    software["packages_hash"] = "another"
    [found] = check(nodes)
    assert (found.severity, found.nodes) == (FAIL, ("n1",))
    assert found.text == "packages differ: numpy 1.26.0 on n1; 2.1.0 on the other 2"
    software["packages"] = {"torch": "2.6.0", "numpy": "2.1.0", "extra": "1"}
    assert check(nodes) == []
    del software["packages"]["numpy"]
    assert check(nodes)[0].text == "packages differ: numpy not installed on n1; 2.1.0 on the other 2"
    pair = cluster(cpu_node, 2)
    pair.facts["n1"]["software"]["packages"] = {"torch": "2.6.0"}
    pair.facts["n1"]["software"]["packages_hash"] = "another"
    assert _brief(check(pair)) == [(WARN, "packages", ("n0", "n1"))]  # perhaps it is n0 that has one more


def test_names_without_an_answer_are_a_warning_where_other_nodes_have_one() -> None:
    nodes = cluster(cpu_node, 3)
    for facts in nodes.facts.values():
        facts["names"]["resolved"] = {}
        facts["missing"] = {f"names.resolved.n{index}": "no answer in 7 s" for index in range(3)}
    assert check(nodes) == []  # names that only the inventory has
    nodes.facts["n0"]["missing"], nodes.facts["n0"]["names"]["resolved"] = {}, {"n1": ["10.0.0.2"]}
    assert _brief(check(nodes)) == [(WARN, "names", ("n1", "n2"))]


def test_address_that_is_a_name_is_compared() -> None:
    nodes = cluster(cpu_node, 3)
    named = {name: replace(node, address=f"{name}.cluster") for name, node in nodes.expected.items()}
    for name, facts in nodes.facts.items():
        facts["names"]["resolved"] = {"n1.cluster": ["10.0.0.9" if name == "n2" else "10.0.0.2"]}
    nodes.facts["n1"]["interfaces"] = [interface("eth0", "10.0.0.2/24")]
    [found] = check(replace(nodes, expected=named))
    assert (found.severity, found.nodes) == (FAIL, ("n2",))
    assert [host_names("n0", NodeRequest(address)) for address in ("localhost", "127.0.0.7", "::1")] == [[], [], []]


def test_a_name_must_lead_to_an_address_of_its_node() -> None:
    nodes = cluster(cpu_node, 4)
    for name, facts in nodes.facts.items():
        address = nodes.expected[name].address
        facts["interfaces"] = [interface("eth0", f"{address}/24"), interface("docker0", "172.17.0.1/16", kind="bridge")]
        facts["names"]["resolved"][name] = [address, "172.17.0.1", "fe80::1%eth0"]  # as of systemd-resolved
    assert check(nodes) == []
    nodes.facts["n2"]["names"]["resolved"]["n0"] = ["10.9.9.9"]
    [found] = check(nodes)
    assert (found.severity, found.nodes) == (FAIL, ("n2",))
    assert found.text == "n0 resolves to 10.9.9.9, which n0 does not have; to an address of n0 on 3 other nodes"


def test_names_of_nodes_behind_address_translation_are_a_warning_if_they_differ() -> None:
    nodes = cluster(cpu_node, 3)
    for facts in nodes.facts.values():
        facts["interfaces"] = [interface("eth0", "192.168.0.4/24")]
    nodes.facts["n0"]["names"]["resolved"]["n0"] = ["192.168.0.4"]
    assert _brief(check(nodes)) == [(WARN, "names", ("n0",))]
    nodes.facts["n0"]["names"]["resolved"]["n0"] = ["192.168.0.4", "10.0.0.1"]
    assert check(nodes) == []


def test_own_name_on_the_loopback_is_a_warning_as_debian_installs_it() -> None:
    nodes = cluster(cpu_node, 2)
    for name, facts in nodes.facts.items():
        facts["names"]["resolved"][name] = ["127.0.1.1"]
    assert _brief(check(nodes)) == [(WARN, "names", ("n0", "n1"))]


def test_code_is_compared_by_commit_then_by_its_files() -> None:
    nodes = cluster(cpu_node, 3)
    for name, facts in nodes.facts.items():
        dirty = name == "n2"
        facts["code"] = {"path": "/code", "identity": "", "commit": "c" * 40, "dirty": dirty, "digest": f"{dirty}" * 3}
    [found] = check(nodes)
    assert (
        found.text
        == "the files of the code differ: changed files TrueTrueTrue on n2; files FalseFalseFa on the other 2"
    )
    assert nodes.facts["n0"]["code"]
    nodes.facts["n0"]["code"]["commit"] = "d" * 40
    assert check(nodes)[0].text == "the code differs: commit dddddddddddd on n0; commit cccccccccccc on the other 2"


def test_code_in_one_folder_of_several_nodes_is_not_compared_with_itself() -> None:
    nodes = cluster(cpu_node, 3)
    for name, facts in nodes.facts.items():
        shared = "nfs4:server:/data::7" if name != "n2" else "local:b:1:7"
        facts["code"] = {"path": "/code", "identity": shared, "commit": None, "dirty": None, "digest": name}
    [found] = check(nodes)
    assert found.text == "the files of the code differ: files n2 on n2; files n0 on the other 2"
    assert nodes.facts["n2"]["code"]
    nodes.facts["n2"]["code"]["identity"] = "nfs4:server:/data::7"
    assert check(nodes) == []


def test_hardware_that_the_ranks_do_not_use_fails_no_node() -> None:
    nodes = cluster(gpu_node, 4, "cpu")
    facts = nodes.facts["n2"]
    facts["hcas"][0]["ports"][0]["state"] = "DOWN"
    facts["hcas"][1]["ports"][0]["rate"] = 200.0
    facts["topology"]["GPU0"]["GPU1"] = "SYS"
    facts["software"].update({"driver": None, "cuda": "12.1"})
    assert check(nodes) == []
    on_cards = {name: replace(node, accelerator="cuda") for name, node in nodes.expected.items()}
    found = check(replace(nodes, expected=on_cards))
    assert {(finding.severity, finding.check) for finding in found} == {
        (FAIL, "nvlink"),
        (FAIL, "ports"),
        (FAIL, "versions"),
    }
    over_ethernet = {name: replace(node, network="ethernet") for name, node in on_cards.items()}
    assert "ports" not in {finding.check for finding in check(replace(nodes, expected=over_ethernet))}


def test_links_are_compared_between_nodes_with_the_same_cards() -> None:
    nodes = cluster(gpu_node, 4, "cuda", 2)
    nodes.facts["n2"]["topology"]["GPU0"]["GPU1"] = "SYS"
    for card in nodes.facts["n2"]["cards"]:
        card["name"] = "NVIDIA L40S"
    assert _brief(check(nodes)) == [(WARN, "cards", ("n2",))]


def test_links_of_other_cards_of_the_same_model_are_not_compared() -> None:
    nodes = cluster(gpu_node, 3, "cuda", 2)
    facts = nodes.facts["n2"]  # Slurm gave the job two other cards of this node
    facts["topology"]["GPU0"]["GPU1"] = "SYS"
    for index, card in enumerate(facts["cards"]):
        card["pci"] = f"0000:{index + 4:02x}:00.0"
    assert check(nodes) == []


def test_home_with_few_inodes_is_a_warning() -> None:
    nodes = cluster(cpu_node, 1)
    home = disk("home", "/home/u")
    home["inodes_free"] = 9
    nodes.facts["n0"]["disks"].append(home)
    assert _brief(check(nodes)) == [(WARN, "disk", ("n0",))]


def test_ports_without_a_majority_are_a_warning() -> None:
    nodes = cluster(gpu_node, 4, "cuda", 2)
    for name in ("n1", "n2", "n3"):
        nodes.facts[name]["hcas"][1]["ports"][0]["state"] = "DOWN"  # a port that n0 has for storage
    assert _brief(check(nodes)) == [(WARN, "ports", ("n1", "n2", "n3"))]
    nodes = cluster(gpu_node, 2, "cuda", 2)
    nodes.facts["n1"]["hcas"][1]["ports"][0]["rate"] = 200.0
    assert _brief(check(nodes)) == [(WARN, "ports", ("n0", "n1"))]


def test_ports_of_different_adapters_are_not_compared() -> None:
    nodes = cluster(gpu_node, 4, "cuda", 2)
    nodes.facts["n2"]["hcas"][1]["board"] = "MT_0000000223"
    nodes.facts["n2"]["hcas"][1]["ports"][0]["rate"] = 200.0
    assert "ports" not in {finding.check for finding in check(nodes)}


def test_two_nodes_have_no_majority_so_both_are_named() -> None:
    nodes = cluster(cpu_node, 2)
    nodes.facts["n1"]["software"]["torch"] = "2.5.1"
    [found] = check(nodes)
    assert (found.text, found.nodes) == ("the version of torch differs: 2.6.0 on n0, 2.5.1 on n1", ("n0", "n1"))


def test_equal_faults_of_several_nodes_are_one_finding() -> None:
    nodes = cluster(cpu_node, 5)
    for name in ("n4", "n1"):
        nodes.facts[name]["limits"]["nofile"] = {"soft": 256, "hard": 256}
    assert _brief(check(nodes)) == [(FAIL, "nofile", ("n1", "n4"))]


def test_a_node_without_an_answer_is_a_failure() -> None:
    nodes = cluster(gpu_node, 3, "cuda", 2)
    facts = {name: node for name, node in nodes.facts.items() if name != "n1"}
    nodes.facts["n0"]["cards"][0]["health"]["clocks_event_reasons.active"] = "0x8"
    found = check(replace(nodes, facts=facts, failures={"n1": "no answer for 30 s"}))
    assert _brief(found) == [(FAIL, "answer", ("n1",)), (WARN, "throttling", ("n0",))]
    assert found[0].text == "no answer for 30 s"


@pytest.mark.parametrize(("is_job_without_gpus", "words"), [(True, "slurm.gres: gpu"), (False, "lost from the bus")])
def test_missing_cards_of_a_job_that_requested_none_are_not_called_lost(
    *, is_job_without_gpus: bool, words: str
) -> None:
    nodes = replace(cluster(gpu_node, 2, "cuda"), is_job_without_gpus=is_job_without_gpus)
    nodes.facts["n0"]["cards"].clear()
    [finding] = [found for found in check(nodes) if found.severity is FAIL and found.check == "cards"]
    assert words in finding.remedy


def test_cards_that_the_ranks_do_not_use_may_be_in_use() -> None:
    nodes = cluster(gpu_node, 1, "cuda", 1)
    nodes.facts["n0"]["cards"][1]["processes"] = [STRANGER]  # type: ignore[list-item]  # a plain dict
    assert check(nodes) == []
    chosen = {"n0": replace(nodes.expected["n0"], env={"CUDA_VISIBLE_DEVICES": "1"})}
    assert _brief(check(replace(nodes, expected=chosen))) == [(FAIL, "strangers", ("n0",))]


def test_errors_of_cards_that_the_ranks_do_not_use_fail_no_node() -> None:
    nodes = cluster(gpu_node, 1, "cuda", 1)
    nodes.facts["n0"]["cards"][1]["health"]["remapped_rows.pending"] = "1"
    nodes.facts["n0"]["kernel_messages"] = [XID]
    assert _brief(check(nodes)) == [(WARN, "xid", ("n0",))]
    nodes.facts["n0"]["cards"][1]["pci"] = "0000:01:00.0".upper()
    chosen = {"n0": replace(nodes.expected["n0"], env={"CUDA_VISIBLE_DEVICES": "1"})}
    assert _brief(check(replace(nodes, expected=chosen))) == [(FAIL, "ecc", ("n0",)), (FAIL, "xid", ("n0",))]


def test_one_machine_under_two_names_is_found_by_its_cards() -> None:
    nodes = cluster(gpu_node, 2, "cuda", 2)
    nodes.facts["n1"]["cards"] = nodes.facts["n0"]["cards"]
    assert _brief(check(nodes)) == [(FAIL, "uuids", ("n0", "n1"))]
    here = {name: replace(node, address="127.0.0.1") for name, node in nodes.expected.items()}
    assert check(replace(nodes, expected=here)) == []  # as transport: local


def test_roce_needs_a_gid_of_version_2() -> None:
    nodes = cluster(gpu_node, 2, "cuda", 2)
    nodes = replace(nodes, expected={name: replace(node, network="roce") for name, node in nodes.expected.items()})
    assert {finding.check for finding in check(nodes)} == {"variables"}
    for facts in nodes.facts.values():
        for hca in facts["hcas"]:
            hca["ports"][0]["link_layer"] = "Ethernet"
    [first, second] = check(nodes)
    assert (first.text, first.nodes) == ("mlx5_0 has no RoCE v2 GID", ("n0", "n1"))
    assert second.severity == FAIL


def test_an_old_error_of_the_driver_is_a_warning() -> None:
    nodes = cluster(gpu_node, 2, "cuda", 2)
    nodes.facts["n1"]["kernel_messages"] = [XID]
    nodes.facts["n1"]["clock"]["time"] = 4000.0
    assert _brief(check(nodes)) == [(WARN, "xid", ("n1",))]


def test_a_clock_is_compared_with_most_nodes_or_with_this_machine() -> None:
    nodes = cluster(cpu_node, 4)
    skewed = replace(nodes, clocks={**dict.fromkeys(nodes.expected, (-100.0, -99.9)), "n3": (-60.2, -60.0)})
    [found] = check(skewed)
    assert (found.severity, found.nodes) == (FAIL, ("n3",))
    assert found.text == "the clock is 39.8 s ahead of that of most nodes"
    single = cluster(cpu_node, 1)
    assert check(replace(single, clocks={"n0": (-3.0, 0.5)})) == []  # the request took longer than the difference
    assert check(replace(single, clocks={"n0": (-3.0, -2.0)}))[0].text == "the clock is 2 s behind that of this machine"


def test_the_clock_of_this_machine_alone_fails_no_node() -> None:
    single, pair = cluster(cpu_node, 1), cluster(cpu_node, 2)
    assert _brief(check(replace(single, clocks={"n0": (-90.0, -89.0)}))) == [(WARN, "clock", ("n0",))]
    slow = {"n0": (-90.0, -89.0), "n1": (-90.1, -89.1)}
    assert {finding.severity for finding in check(replace(pair, clocks=slow))} == {WARN}
    [found] = check(replace(pair, clocks={"n0": (-0.1, 0.1), "n1": (39.9, 40.1)}))
    assert (found.severity, found.nodes) == (FAIL, ("n1",))
    assert found.evidence == "the clocks of both nodes are 39.8 s apart"
    assert {
        finding.severity for finding in check(replace(pair, clocks={"n0": (-20.0, -20.0), "n1": (20.0, 20.0)}))
    } == {FAIL}


def test_the_rendezvous_port_must_be_free_and_reachable() -> None:
    nodes = cluster(cpu_node, 3)
    test = Rendezvous("n0", "10.0.0.1", 29500, {"n2": "no answer for 3 s"})
    [found] = check(replace(nodes, rendezvous=test))
    assert found.text == "n0 at 10.0.0.1 cannot be reached at a rendezvous port: no answer for 3 s"
    assert (found.severity, found.check, found.nodes) == (FAIL, "port", ("n2",))
    assert _brief(check(replace(nodes, rendezvous=replace(test, unreachable={}, error="in use")))) == [
        (FAIL, "port", ("n0",))
    ]


def test_a_shared_folder_must_have_the_token_everywhere() -> None:
    nodes = cluster(cpu_node, 3)
    test = SharedFolder("/nfs/orch", "n0", {"n1": "", "n2": "No such file or directory"})
    [found] = check(replace(nodes, shared=[test]))
    assert (found.severity, found.nodes) == (FAIL, ("n2",))
    assert "the file that n0 wrote there is not on this node: No such file" in found.text


def test_every_check_has_a_name_that_its_findings_use() -> None:
    nodes = cluster(gpu_node, 2, "cuda", 2)
    broken = Cluster(nodes.expected, {}, dict.fromkeys(nodes.expected, "no route to host"))
    assert [finding.check for finding in check(broken)] == ["answer"]
    assert {fault[0] for fault in FAULTS} <= CHECKS.keys()


def test_a_difference_names_the_minority_first() -> None:
    found = difference({"n0": 1, "n1": 2, "n2": 1, "n3": 3})
    assert found is not None
    assert (found.majority, found.nodes, found.text()) == (1, ("n1", "n3"), "2 on n1, 3 on n3; 1 on the other 2")
    assert difference({"n0": 1, "n1": 1}) is None


@pytest.mark.parametrize(
    ("needs_torch", "env", "severity"),
    [(True, {}, FAIL), (True, {"PYTHONPATH": "/data"}, WARN), (None, {}, Severity.INFO), (False, {}, None)],
)
def test_missing_torch_refuses_the_shared_trainer_alone(
    needs_torch: bool | None, env: dict[str, str], severity: Severity | None
) -> None:
    nodes = cluster(cpu_node, 2)
    for name, facts in nodes.facts.items():
        facts["software"]["torch"] = None
        expected = replace(nodes.expected[name], needs_torch=needs_torch, env=env)
        nodes = replace(nodes, expected={**nodes.expected, name: expected})
    found = [finding for finding in check(nodes) if finding.check == "trainer"]
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])
    if found:
        assert found[0].nodes == ("n0", "n1")
        assert found[0].remedy.startswith("/usr/bin/python3 -m pip install torch; or set python:")
