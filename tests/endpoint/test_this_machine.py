"""This machine is recognised by its name and its addresses; the near end of a tunnel is not it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.endpoint.this_machine import is_this_host_name, is_this_machine
from orchestrator.errors import NodeError
from orchestrator.inventory.model import Node, SshOptions


def _is_here(tmp_path: Path, address: str, *lines: str, jump: str | None = None) -> bool:
    config = tmp_path / "ssh_config"
    config.write_text("\n".join((f"Host {address}", *lines)) + "\n", "utf-8")
    return is_this_machine(Node(name="login", address=address), SshOptions(config=str(config), proxy_jump=jump))


def test_host_name_of_this_machine_needs_no_ssh_configuration() -> None:
    nowhere = SshOptions(config="/nowhere/ssh_config", proxy_jump="bastion")
    assert is_this_machine(Node(name="login", address=socket.gethostname()), nowhere)
    with pytest.raises(NodeError, match="ssh configuration"):
        is_this_machine(Node(name="login", address="another-host"), nowhere)


@pytest.mark.parametrize(
    ("host_name", "name", "same"),
    [
        ("login0", "login0", True),
        ("login0", "LOGIN0.cluster.org", True),
        ("login0.cluster.org", "login0", True),
        ("login0.cluster.org", "login0.other.org", False),
        ("login0", "login1", False),
    ],
)
def test_short_and_full_host_names_match(
    monkeypatch: pytest.MonkeyPatch, host_name: str, name: str, *, same: bool
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host_name)
    assert is_this_host_name(name) is same


@pytest.mark.parametrize(
    ("lines", "here"),
    [
        ((f"HostName {socket.gethostname()}",), True),
        (("HostName 127.0.0.1",), True),
        (("HostName 127.0.0.1", "Port 2222"), False),  # ssh -L 2222:login0:22
        (("HostName 127.0.0.1", "ProxyJump bastion"), False),
        (("HostName 127.0.0.1", "ProxyCommand nc %h %p"), False),
        (("HostName 192.0.2.1",), False),
        (("HostName no-such-host.invalid",), False),
    ],
)
def test_host_name_is_resolved_by_the_ssh_configuration(tmp_path: Path, lines: tuple[str, ...], *, here: bool) -> None:
    assert _is_here(tmp_path, "login", *lines) is here


def test_address_behind_a_jump_host_is_another_networks(tmp_path: Path) -> None:
    assert _is_here(tmp_path, "127.0.0.1")
    assert not _is_here(tmp_path, "127.0.0.1", jump="bastion")
