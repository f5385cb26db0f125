"""Memory, disks and RDMA ports of a node, as /proc and /sys show them; what they do not show is None, or no port."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.endpoint.machine_use import machine_use


def test_values_of_proc_and_sys(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:  2048 kB\nMemFree:  5 kB\nMemAvailable:  512 kB\nHugePages_Total:  0\n"
    )
    for port, state, received in (("1", "4: ACTIVE", "250"), ("2", "1: DOWN", "7")):
        counters = tmp_path / "rdma" / "mlx5_0" / "ports" / port / "counters"
        counters.mkdir(parents=True)
        (counters.parent / "state").write_text(f"{state}\n")
        for name, value in (
            ("port_rcv_data", received),
            ("port_xmit_data", "5"),
            ("symbol_error", "3"),
            ("link_downed", "1"),
        ):
            (counters / name).write_text(f"{value}\n")
    use = machine_use(str(tmp_path), str(tmp_path), str(tmp_path / "rdma"), str(tmp_path / "none"))
    assert (use["memory_total"], use["memory_available"], use["shm"]) == (2 << 20, 512 << 10, None)
    assert use["disk"] is not None
    assert 0 < use["disk"]["free"] <= use["disk"]["total"]
    assert use["ports"] == [{"name": "mlx5_0:1", "received": 1000, "sent": 20, "errors": 4}]


def test_machine_without_such_files(tmp_path: Path) -> None:
    use = machine_use(str(tmp_path / "none"), str(tmp_path), str(tmp_path), str(tmp_path))
    assert (use["memory_total"], use["disk"], use["ports"]) == (None, None, [])
