"""The network of hosts that are reached over SSH is discovered from their facts, for `orch env` and for a launch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.grounds.hosts import Hosts


def test_interface_is_explained_and_set_by_a_launch_unless_the_user_sets_it(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path)
    with (tmp_path / "inventory.yaml").open("a") as file:
        file.write("env: {TP_SOCKET_IFNAME: lo}\n")
    orch = hosts.orch(tmp_path)
    explanation = json.loads(orch("env", "--explain", "--json").stdout)
    values = {row["name"]: row for row in explanation["variables"]}
    assert (values["GLOO_SOCKET_IFNAME"]["value"], values["GLOO_SOCKET_IFNAME"]["nodes"]) == (
        "eth0",
        ["h0", "h1", "h2"],
    )
    assert values["TP_SOCKET_IFNAME"]["replaces"].startswith("eth0 (discovered: all nodes share 10.77.0.0/24")
    printed = orch("ssh-launch", "--", "sh", "-c", "echo $GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME $MASTER_ADDR").stdout
    assert printed.count(f"eth0 lo {hosts[0].address}\n") == len(values["GLOO_SOCKET_IFNAME"]["nodes"])
