"""Nothing is forwarded, no unknown host is trusted, and no setting of ssh_config changes that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.errors import NodeError
from orchestrator.inventory.model import Inventory, Node, SshOptions
from tests.grounds.ssh_agent import open_agent
from tests.grounds.ssh_clients import BOTH_CLIENTS, Client
from tests.grounds.sshd import Farm

ROOT = Path(__file__).parents[2]
SHIPPED = ("orchestrator", "trainer", "templates", "inventories", "scripts")
# Code that would trust an unknown host, forward keys or the screen, or pass text to a shell.
FORBIDDEN = (
    r"AutoAddPolicy",
    r"WarningPolicy",
    r"StrictHostKeyChecking",
    r"load_system_host_keys",
    r"forward_agent=(?!False)",
    r"ForwardAgent",
    r"AgentRequestHandler",
    r"request_x11",
    r"ForwardX11",
    r"get_pty",
    r"shell=True",
    r"os\.system",
    r"[\"'](?:/usr/bin/)?(?:ssh|scp|sftp|sshpass|pdsh)[\"'](?=, *(?:\[|\*|[\"']-))",
)

REVIEWED = (
    # the command that a message suggests, which is built as a list and never run; and the person's own login of `orch ssh`: what it
    # may forward is the person's choice, but host keys are verified
    'argv = ["ssh", *(["-F", str(Path(ssh.config).expanduser())] if ssh.config else [])]  # ssh does not expand a ~',
    'argv += ["-o", f"StrictHostKeyChecking={checking}", "-o", f"ConnectTimeout={max(1, round(ssh.connect_timeout_s))}"]',
    # the program ssh, whose options a configuration cannot change
    'argv = ["ssh", "-a", "-x", "-T", *config, *(["-l", user] if user else [])]',
    '"StrictHostKeyChecking": "accept-new" if self._ssh.host_keys == "accept-new" else "yes",',
    # the same from node to node: the policy of the inventory, without prompts and forwarding
    '"StrictHostKeyChecking": "accept-new" if ssh.host_keys == "accept-new" else "yes",',
    'login = ["ssh", "-a", "-x", "-T", *words, "-l", hop.user, "-p", str(hop.port), "--", hop.host]',
)


def test_no_line_of_the_source_accepts_unknown_hosts_or_forwards_anything() -> None:
    files = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in {".py", ".j2", ".yaml", ".sh"}}
    assert len(texts) > 50
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in FORBIDDEN
        if re.search(pattern, line)
    ]
    assert [line for line in found if line.partition(": ")[2] not in REVIEWED] == []


def test_host_keys_are_strict_by_default() -> None:
    assert Inventory(nodes=(Node(name="n0"),)).ssh.host_keys == "strict"


@BOTH_CLIENTS
@pytest.mark.parametrize("trusting", ["no", "off", "accept-new", "ask"])
def test_the_ssh_configuration_cannot_disable_the_host_key_check(
    farm: Farm, tmp_path: Path, trusting: str, client: Client
) -> None:
    """A user's setting for single logins is no consent for 64 machines."""
    config = farm.write_ssh_config(
        tmp_path / "config", known_hosts=tmp_path / "none", StrictHostKeyChecking=trusting, CheckHostIP="no",
        NoHostAuthenticationForLocalhost="yes", VerifyHostKeyDNS="yes",
    )  # fmt: skip
    transport = client(Node(name="n0"), SshOptions(config=str(config)))
    with pytest.raises(NodeError, match=r"is unknown|key is known"):
        transport.open(["true"])
    transport.close()
    assert not (tmp_path / "none").exists()


@BOTH_CLIENTS
def test_the_ssh_configuration_cannot_enable_agent_or_x11_forwarding(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    config = farm.write_ssh_config(
        tmp_path / "config", ForwardAgent="yes", ForwardX11="yes", ForwardX11Trusted="yes", RequestTTY="force",
        SendEnv="TERM", PermitLocalCommand="yes", LocalCommand=f"touch {tmp_path}/local", RemoteCommand="touch remote",
        LocalForward=f"{tmp_path}/forward 127.0.0.1:1", ControlMaster="yes", ControlPath=f"{tmp_path}/control",
    )  # fmt: skip
    with open_agent(tmp_path / "agent"), farm.restarted(AllowAgentForwarding="yes", X11Forwarding="yes", AcceptEnv="*"):
        transport = client(Node(name="n0"), SshOptions(config=str(config)))
        channel = transport.open(["sh", "-c", "env; test -t 0 || echo no terminal"])
        output = channel.read_some(timeout_s=20).decode()
        while "no terminal" not in output:
            output += channel.read_some(timeout_s=20).decode()
        transport.close()
    assert "SSH_CONNECTION=" in output
    assert "SSH_AUTH_SOCK" not in output
    assert "DISPLAY" not in output
    assert {path.name for path in tmp_path.iterdir()} == {"config"}
    assert not (farm.home / "remote").exists()
