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


def test_dry_run_that_queries_prints_what_a_launch_discovers_and_leaves_nothing(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path)
    orch = hosts.orch(tmp_path)
    words = "ssh-launch", "--dry-run", "--", "true"
    discovered = "export GLOO_SOCKET_IFNAME='eth0'"
    assert discovered not in orch(*words).stdout
    queried = orch(words[0], "--query", *words[1:]).stdout
    assert queried.count(discovered) == len(hosts.hosts)
    assert not orch.home.joinpath("runs").exists() or not list(orch.home.joinpath("runs").iterdir())
    assert not any(list(host.path(hosts.home).glob("**/runs/*")) for host in hosts.hosts)
    refused = orch("ssh-launch", "--query", "--", "true", code=2).stderr
    assert "--query is for --dry-run" in refused


def test_dry_run_that_queries_is_refused_as_the_launch_is(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path, defaults={"workdir": "/etc/orch"})
    orch = hosts.orch(tmp_path)
    words = "ssh-launch", "--query", "--dry-run", "--", "true"
    done = orch(*words, code=None)
    assert done.returncode != 0
    assert "the check of the nodes failed, so nothing was started" in done.stderr
