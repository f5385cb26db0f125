"""The network that NCCL took: by published lines of NCCL's log, by the open devices of the ranks, and against the expected one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent import network_watch
from orchestrator.node.agent.network_watch import (
    NetworkWatch,
    expected_network,
    network_of_open_devices,
    open_devices,
    printed_network,
)
from orchestrator.node.run.events import Clock, EventLog
from orchestrator.node.run.job import Job
from tests.paths import CASES

SOCKETS, ROCE, PLUGIN = ((CASES / "vendor" / f"nccl-{name}.txt").read_text() for name in ("socket", "roce", "plugin"))


def _ports(root: Path, **devices: tuple[str, str]) -> str:
    """A tree with one port per RDMA device: its state and link layer."""
    for name, (state, layer) in devices.items():
        folder = root / "sys" / "class" / "infiniband" / name / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "link_layer").write_text(f"{layer}\n")
    return str(root)


@pytest.mark.parametrize(
    ("network", "env", "expected"),
    [
        ("auto", {}, "IB"),
        ("infiniband", {}, "IB"),
        ("roce", {}, "RoCE"),
        ("ethernet", {}, ""),
        ("infiniband", {"NCCL_IB_DISABLE": "1"}, ""),
        ("auto", {"NCCL_NET": "Socket"}, ""),
        ("auto", {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}, "IB"),
    ],
)
def test_expected_network_is_the_inventorys_or_that_of_the_active_ports(
    tmp_path: Path, network: str, env: dict[str, str], expected: str
) -> None:
    active, down = ("4: ACTIVE", "InfiniBand"), ("1: DOWN", "InfiniBand")
    root = _ports(tmp_path, mlx5_0=active, mlx5_1=down, mlx5_bond_0=("4: ACTIVE", "Ethernet"))
    found, ports = expected_network(network, env, root)
    assert found == expected
    assert ports == ["mlx5_0:1", "mlx5_bond_0:1"]


def test_node_without_an_active_port_expects_no_rdma(tmp_path: Path) -> None:
    assert expected_network("auto", {}, str(tmp_path)) == ("", [])
    assert expected_network("auto", {}, _ports(tmp_path, mlx5_0=("1: DOWN", "InfiniBand"))) == ("", [])


@pytest.mark.parametrize(
    ("outputs", "taken"),
    [
        ({}, ""),
        ({"rank-0.err": "NCCL version 2.18.3+cuda12.2\n"}, ""),  # all that NCCL_DEBUG=VERSION prints
        ({"rank-0.out": SOCKETS}, "Socket"),
        ({"rank-1.err": ROCE}, "IB"),
        ({"rank-0.err": PLUGIN}, "IBext_v8"),
        ({"rank-0.err": ROCE, "rank-1.err": SOCKETS}, "Socket"),
        ({"rank-0.err": "NET/IB : No device found.\nsome NCCL INFO Using network\n"}, ""),
    ],
)
def test_network_is_the_one_that_nccl_printed(tmp_path: Path, outputs: dict[str, str], taken: str) -> None:
    for name, text in outputs.items():
        (tmp_path / name).write_text(text)
    found, line = printed_network(str(tmp_path), range(2))
    assert found == taken
    assert line == (
        f"{next(reversed(outputs)).partition('.')[0].replace('-', ' ')} printed `NCCL INFO Using network {taken}`"
        if taken
        else ""
    )


def test_only_the_head_of_the_output_is_read(tmp_path: Path) -> None:
    (tmp_path / "rank-0.out").write_text("x" * network_watch.HEAD_BYTES + SOCKETS)
    assert printed_network(str(tmp_path), [0]) == ("", "")


CARD, VERBS = {"/dev/null", "/dev/nvidiactl", "/dev/nvidia3"}, {"/dev/infiniband/uverbs0"}


@pytest.mark.parametrize(
    ("processes", "taken"),
    [
        ([], ""),
        ([{"/dev/null", "/dev/nvidiactl"}], ""),  # no card: a shell, or a process in a container that is not visible
        ([CARD, CARD], "Socket"),
        ([CARD, CARD | VERBS], "RDMA"),
        ([CARD, VERBS], "Socket"),
    ],
)
def test_ranks_with_a_card_and_no_rdma_device_use_sockets_after_a_step(processes: list[set[str]], taken: str) -> None:
    assert network_of_open_devices(processes, after_step=True)[0] == taken
    before = "" if taken == "Socket" else taken  # NCCL may open the devices later
    assert network_of_open_devices(processes, after_step=False)[0] == before


def test_devices_that_a_process_has_open_are_read() -> None:
    with open(os.devnull):  # noqa: PTH123  a device
        assert os.devnull in open_devices(os.getpid())
    assert open_devices(1 << 30) == set()


def _watch(folder: Path, **fields: Any) -> NetworkWatch:  # fields of a job
    program = {"args": ["train.sh"], "python": False, "cwd": None, "pythonpath": None}
    job = Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], program=program,
        grace_s=1.0, card_sample_s=0.0, **{"ranks": [1, 1], "network": "infiniband", **fields},
    )  # fmt: skip
    (folder / "progress").mkdir(exist_ok=True)
    return NetworkWatch(job, str(folder), EventLog(str(folder), Clock()))


def _step(folder: Path, step: int) -> None:
    (folder / "progress" / "0.json").write_text(json.dumps({"step": step, "phase": "step"}))


def test_socket_instead_of_infiniband_is_reported_once_after_the_first_step(tmp_path: Path) -> None:
    watch = _watch(tmp_path)
    (tmp_path / "rank-0.out").write_text(SOCKETS)
    _step(tmp_path, 0)
    watch.poll()
    assert not (tmp_path / "network.json").exists()
    _step(tmp_path, 1)
    watch.poll()
    report = json.loads((tmp_path / "network.json").read_text())
    assert (report["expected"], report["taken"]) == ("IB", "Socket")
    [event] = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    line = "rank 0 printed `NCCL INFO Using network Socket`; no RDMA port of the node is active"
    assert event["text"] == f"warning: expected IB, got Socket: {line}"
    (tmp_path / "network.json").unlink()
    watch.poll()
    assert not (tmp_path / "network.json").exists()


def test_infiniband_as_expected_is_recorded_without_a_warning(tmp_path: Path) -> None:
    watch = _watch(tmp_path)
    (tmp_path / "rank-0.out").write_text(PLUGIN)
    watch.poll()
    assert json.loads((tmp_path / "network.json").read_text())["taken"] == "IBext_v8"
    assert (tmp_path / "events.jsonl").read_text() == ""


@pytest.mark.parametrize(
    "fields", [{"ranks": [2]}, {"network": "ethernet"}, {"accelerator": "cpu"}, {"accelerator": "gcu"}], ids=str
)
def test_run_that_expects_no_rdma_is_not_judged(tmp_path: Path, fields: dict[str, Any]) -> None:
    watch = _watch(tmp_path, **fields)
    (tmp_path / "rank-0.out").write_text(SOCKETS)
    _step(tmp_path, 1)
    watch.poll()
    assert not (tmp_path / "network.json").exists()


def test_network_that_nothing_shows_stays_unknown(tmp_path: Path) -> None:
    watch = _watch(tmp_path)
    _step(tmp_path, 1)
    for _ in range(2 * network_watch.MOST_POLLS):
        watch.poll()
    assert not (tmp_path / "network.json").exists()
