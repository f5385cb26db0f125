"""The CPUs of ranks: those near their cards in trees of /proc and /sys, and none if anything is unknown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.binding import Unbound, bind_ranks
from orchestrator.node.agent.program import rank_setup
from orchestrator.node.number_text import format_numbers, parse_numbers
from orchestrator.node.run.job import Job
from orchestrator.node.system.processes import Inherited

ALL, NEAR_0, NEAR_1 = "0-63", "0-15,32-47", "16-31,48-63"
# Two sockets with four cards each.
BUSES = [("0000:18:00.0", 0), ("0000:2a:00.0", 0), ("0000:3a:00.0", 0), ("0000:5d:00.0", 0)]
BUSES += [("0000:9a:00.0", 1), ("0000:ab:00.0", 1), ("0000:ba:00.0", 1), ("0000:db:00.0", 1)]
INFORMATION = "Model: \t\t {}\nIRQ:   \t\t 77\nGPU UUID: \t GPU-{}\nBus Location: \t {}\nDevice Minor: \t {}\nGPU Excluded:\t No\n"


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def host(root: Path, buses: Sequence[tuple[str, int]] = BUSES, *, models: Sequence[str] = ("NVIDIA H800",) * 8) -> Path:
    """A machine with NVIDIA cards: the PCI address and the NUMA node of each."""
    write(root, "sys/devices/system/cpu/online", ALL)
    for index, (address, node) in enumerate(buses):
        write(root, f"dev/nvidia{index}")
        write(
            root,
            f"proc/driver/nvidia/gpus/{address}/information",
            INFORMATION.format(models[index], index, address, index),
        )
        write(root, f"sys/bus/pci/devices/{address}/numa_node", str(node))
        write(root, f"sys/bus/pci/devices/{address}/local_cpulist", [NEAR_0, NEAR_1, ALL][node])
    write(root, "dev/nvidiactl")
    return root


def job_of(ranks: int = 8, *, per_node: bool = False, **fields: Any) -> Job:  # fields of a job
    program = {"args": ["train.sh"], "python": False, "cwd": None, "pythonpath": None, "per_node": per_node}
    return Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], ranks=[ranks],
        program=program, grace_s=1.0, **{"accelerator": "cuda", **fields},
    )  # fmt: skip


def cpus_of(root: Path, *, affinity: str = ALL, env: dict[str, str] | None = None, **job: Any) -> list[str]:
    usable = parse_numbers(affinity)
    assert usable is not None
    return [format_numbers(cpus) for cpus in bind_ranks(job_of(**job), env or {}, usable, str(root))]


def test_ranks_get_the_cpus_of_their_cards_sockets(tmp_path: Path) -> None:
    assert cpus_of(host(tmp_path)) == [NEAR_0] * 4 + [NEAR_1] * 4
    assert cpus_of(tmp_path, ranks=2, accelerator="auto") == [NEAR_0] * 2


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("4,5", [NEAR_1, NEAR_1]), ("7,0", [NEAR_1, NEAR_0]), ("GPU-0, GPU-6", [NEAR_0, NEAR_1])],
)
def test_visible_devices_are_followed_in_their_order(tmp_path: Path, visible: str, expected: list[str]) -> None:
    assert cpus_of(host(tmp_path), ranks=2, env={"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.parametrize(
    "file", ["sys/fs/cgroup/job/cpuset.cpus.effective", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus"]
)
def test_cpus_are_those_of_the_cgroup_that_are_near(tmp_path: Path, file: str) -> None:
    write(
        host(tmp_path),
        "proc/self/cgroup",
        "0::/job" if "cpuset/job" not in file else "7:cpu,cpuset:/job\n3:memory:/other",
    )
    write(tmp_path, file, "8-23")
    assert cpus_of(tmp_path, affinity="8-23") == ["8-15"] * 4 + ["16-23"] * 4


def test_excluded_card_has_no_index(tmp_path: Path) -> None:
    text = INFORMATION.format("NVIDIA H800", 0, BUSES[0][0], 0).replace("Excluded:\t No", "Excluded:\t Yes")
    write(host(tmp_path), f"proc/driver/nvidia/gpus/{BUSES[0][0]}/information", text)
    (tmp_path / "dev" / "nvidia7").unlink()
    assert cpus_of(tmp_path, ranks=4) == [NEAR_0] * 3 + [NEAR_1]


def test_cards_of_several_models_are_in_the_order_of_the_bus_only_on_request(tmp_path: Path) -> None:
    host(tmp_path, models=["NVIDIA L20"] * 4 + ["NVIDIA H800"] * 4)
    assert unbound(tmp_path) == "the cards are of several models, which CUDA numbers by their speed"
    assert cpus_of(tmp_path, env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == [NEAR_0] * 4 + [NEAR_1] * 4


@pytest.mark.parametrize("vendor", ["0x1e36", "0x1ea0"])
def test_cards_of_enflame_are_found_by_their_vendor(tmp_path: Path, vendor: str) -> None:
    host(tmp_path, [])
    for index, (address, node) in enumerate(BUSES):
        write(tmp_path, f"dev/gcu{index}")
        write(tmp_path, f"sys/bus/pci/devices/{address}/vendor", vendor)
        write(tmp_path, f"sys/bus/pci/devices/{address}/numa_node", str(node))
        write(tmp_path, f"sys/bus/pci/devices/{address}/local_cpulist", [NEAR_0, NEAR_1][node])
    assert cpus_of(tmp_path, accelerator="gcu") == [NEAR_0] * 4 + [NEAR_1] * 4
    assert cpus_of(tmp_path, accelerator="auto", ranks=1, env={"TOPS_VISIBLE_DEVICES": "5"}) == [NEAR_1]


def unbound(root: Path, **how: Any) -> str:  # of cpus_of
    with pytest.raises(Unbound) as caught:
        cpus_of(root, **how)
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"bind": "none"}, "bind: none in the inventory"),
        ({"per_node": True}, "the program starts the ranks"),
        ({"affinity": "0-15"}, "the CPUs 0-15 were chosen outside of orch"),
        ({"accelerator": "cpu"}, "the ranks use no cards"),
        ({"ranks": 9}, "9 ranks for 8 visible cards"),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, "visible devices ''"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "MIG-1c2d,0"}}, "visible devices 'MIG-1c2d,0'"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,0"}}, "visible devices '0,0'"),
        (
            {"ranks": 2, "env": {"CUDA_VISIBLE_DEVICES": "0,1"}, "slurm": {"warn_s": 1}},
            "2 of 8 cards are visible, and Slurm may have renumbered them",
        ),
        ({"accelerator": "gcu"}, "8 ranks for 0 visible cards"),
    ],
)
def test_ranks_are_not_bound_if_the_user_or_another_has_chosen(
    tmp_path: Path, how: dict[str, Any], reason: str
) -> None:
    assert unbound(host(tmp_path), **how) == reason


def test_ranks_are_not_bound_on_one_numa_node(tmp_path: Path) -> None:
    assert unbound(host(tmp_path, [(address, 2) for address, _ in BUSES])) == "all CPUs are near every card"


def test_ranks_are_not_bound_if_the_numa_node_of_one_card_is_unknown(tmp_path: Path) -> None:
    write(host(tmp_path), f"sys/bus/pci/devices/{BUSES[6][0]}/numa_node", "-1")
    assert unbound(tmp_path) == f"the NUMA node of {BUSES[6][0]} is unknown"
    assert cpus_of(tmp_path, ranks=6) == [NEAR_0] * 4 + [NEAR_1] * 2


def test_ranks_are_not_bound_in_a_container_without_sysfs(tmp_path: Path) -> None:
    assert unbound(tmp_path) == "the CPUs of the node cannot be read"
    write(tmp_path, "sys/devices/system/cpu/online", ALL)
    assert unbound(tmp_path) == "8 ranks for 0 visible cards"
    write(tmp_path, f"proc/driver/nvidia/gpus/{BUSES[0][0]}/information", "")
    assert unbound(tmp_path) == "1 card on the PCI bus, and 0 device files"
    write(tmp_path, "dev/nvidia0")
    assert unbound(tmp_path, ranks=1) == f"the NUMA node of {BUSES[0][0]} is unknown"


@pytest.mark.parametrize("text", ["", "garbage", "0-", "3-1"])
def test_ranks_are_not_bound_to_a_list_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    write(host(tmp_path), f"sys/bus/pci/devices/{BUSES[0][0]}/local_cpulist", text)
    assert unbound(tmp_path) == f"the NUMA node of {BUSES[0][0]} is unknown"


@pytest.mark.parametrize(
    ("cards_of_nodes", "affinity", "counts"),
    [
        ([(0, "0-7"), (1, "16-23"), (2, "32-39"), (3, "48-55")], ALL, (8, 64, 2)),  # 8 NUMA nodes, 4 of them with cards
        ([(0, NEAR_0)], ALL, (32, 64, 8)),  # all cards on one socket
        ([(0, NEAR_0), (1, NEAR_1)], "0-47", (16, 48, 4)),  # a cgroup with most of the CPUs on one socket
    ],
    ids=["NPS4", "one-socket", "lopsided"],
)
def test_ranks_are_not_bound_to_few_of_the_cpus(
    tmp_path: Path, cards_of_nodes: list[tuple[int, str]], affinity: str, counts: tuple[int, int, int]
) -> None:
    write(host(tmp_path), "sys/devices/system/cpu/online", affinity)
    each = len(BUSES) // len(cards_of_nodes)
    for index, (address, _) in enumerate(BUSES):
        node, cpus = cards_of_nodes[index // each]
        write(tmp_path, f"sys/bus/pci/devices/{address}/numa_node", str(node))
        write(tmp_path, f"sys/bus/pci/devices/{address}/local_cpulist", cpus)
    assert unbound(tmp_path, affinity=affinity) == "only {} of {} CPUs are near the cards of {} ranks".format(*counts)


def test_ranks_are_bound_although_the_system_keeps_some_cpus(tmp_path: Path) -> None:
    write(host(tmp_path), "sys/devices/system/cpu/online", "2-63")
    assert cpus_of(tmp_path, affinity="2-63") == ["2-15,32-47"] * 4 + [NEAR_1] * 4


def test_one_rank_that_may_use_all_cards_is_not_bound(tmp_path: Path) -> None:
    assert unbound(host(tmp_path), ranks=1) == "the one rank may use all of the 8 visible cards"
    assert cpus_of(tmp_path, ranks=1, env={"CUDA_VISIBLE_DEVICES": "4"}) == [NEAR_1]


def test_cpus_near_a_card_that_the_cgroup_lacks_bind_no_rank(tmp_path: Path) -> None:
    write(host(tmp_path), "proc/self/cgroup", "0::/job")
    write(tmp_path, "sys/fs/cgroup/job/cpuset.cpus.effective", "0-15")
    assert unbound(tmp_path, affinity="0-15") == "a card has no CPU near it that the agent may use"


def test_rank_runs_on_its_cpus_only(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    command = ["grep", "Cpus_allowed_list", "/proc/self/status"]
    for cpus, expected in (({cpu}, {cpu}), (set[int](), os.sched_getaffinity(0))):  # no rank can have an empty set
        setup = rank_setup(Inherited(frozenset(), 0o077), str(tmp_path), cpus)
        out = subprocess.run(command, preexec_fn=setup, capture_output=True, text=True, check=True).stdout
        assert parse_numbers(out.split()[1]) == expected
