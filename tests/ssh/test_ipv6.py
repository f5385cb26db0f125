"""Hosts with an IPv6 address, as nodes and as jump hosts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.errors import NodeError
from orchestrator.inventory.model import load
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds import components
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm


@pytest.fixture(autouse=True)
def _ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        components.unavailable("this machine has no IPv6, not even on loopback")


def _inventory(farm: Farm, folder: Path, **ssh: str) -> Path:
    path = farm.inventory(folder, nodes=1, ssh=ssh)
    path.write_text(path.read_text("utf-8").replace("address: 127.0.0.10", "address: '::1'"), "utf-8")
    return path


def login(inventory: Path) -> str:
    loaded = load(inventory)
    transport = SshTransport(loaded.nodes[0], loaded.ssh)
    try:
        channel = transport.open(["sh", "-c", "echo $SSH_CONNECTION"])
        return channel.read_some(timeout_s=20).decode()
    finally:
        transport.close()


def test_a_node_is_reached_by_its_ipv6_address(farm: Farm, tmp_path: Path) -> None:
    assert login(_inventory(farm, tmp_path)).split()[2:] == ["::1", str(farm.port)]


def test_the_port_is_in_the_name_of_the_host_key(farm: Farm, tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    config = str(farm.write_ssh_config(tmp_path / "config", known_hosts=pins))
    with pytest.raises(NodeError, match=rf"the host key of \[::1\]:{farm.port} is unknown"):
        login(_inventory(farm, tmp_path, config=config))
    login(_inventory(farm, tmp_path, config=config, host_keys="accept-new"))
    assert pins.read_text().startswith(f"[::1]:{farm.port} ssh-ed25519 ")
    login(_inventory(farm, tmp_path, config=config))


def test_jump_hosts_may_have_users_ports_and_ipv6_addresses(farm: Farm, tmp_path: Path) -> None:
    jumps = f"{farm.user}@[::1]:{farm.port},ssh://n1:{farm.port},{farm.user}@127.0.0.12,::1"
    connection = login(_inventory(farm, tmp_path, proxy_jump=jumps)).split()
    assert (connection[0], connection[2]) == ("::1", "::1")


def test_a_run_on_an_ipv6_address_is_done(farm: Farm, tmp_path: Path) -> None:
    _inventory(farm, tmp_path)
    orch = Orch(tmp_path)
    orch("ssh-launch", "--", "sh", "-c", 'echo "$MASTER_ADDR"')
    assert [line["text"] for line in orch.lines() if line["stream"] == "out"] == ["::1"]
