"""Names, users, ports and jump hosts with a meaning for a shell or ssh are refused before they are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import InventoryError, NodeError
from orchestrator.inventory.model import Node, SshOptions, load
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.sshd import Farm

CANARY = "CANARY"  # every command below would create this file in the current folder
NASTY = (
    f"-oProxyCommand=touch {CANARY}",
    f"-oProxyCommand=touch${{IFS}}{CANARY}",
    "-F/dev/null",
    "--",
    f"a;touch {CANARY}",
    f"a;touch${{IFS}}{CANARY}",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"a|touch${{IFS}}{CANARY}",
    f"a&touch${{IFS}}{CANARY}&",
    f"a>{CANARY}",
    "a b",
    " a",
    "a\n",
    f"a\ntouch {CANARY}",
    "a\tb",
    "a\0b",
    "a\x1b[2J",
    "'a'",
    '"a"',
    "a\\b",
    "a*",
    "a?",
    "!a",
    "|1|a",
    "~a",
    "a=b",
    "#a",
    "n\u0430de",  # a Cyrillic letter that looks like an a
    "n\u200b0",
    "\uff4e0",
    "\u0660",  # an Arabic digit
    "",
)
PORTS = (0, 65536, -1, "22 -oProxyCommand=x", "22;id", "", "0x16", "1e3", "\u0662\u0662", True, 22.5)


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder in which a command that ran would leave the canary."""
    monkeypatch.chdir(tmp_path)


def refusal(folder: Path, node: dict[str, object], ssh: dict[str, object] | None = None) -> str:
    """The error of `load` for an inventory of one node."""
    base: dict[str, object] = {"name": "x", "accelerator": "cpu", "nodes": [{"name": "n0", **node}], "ssh": ssh or {}}
    with pytest.raises(InventoryError) as caught:
        load(write_inventory(folder / "inventory.yaml", base, {}))
    return str(caught.value)


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("field", ["name", "address", "user"])
def test_a_command_as_a_name_address_or_user_is_refused(tmp_path: Path, field: str, text: str) -> None:
    assert f"nodes[0].{field}: " in refusal(tmp_path, {field: text})


@pytest.mark.parametrize(
    "text", [*NASTY, "gate,", ",gate", "gate,-x", "me@-x", "-x@gate", "gate:0", "gate:22;id", "[::1"]
)
def test_a_command_as_a_jump_host_is_refused(tmp_path: Path, text: str) -> None:
    assert "ssh.proxy_jump: " in refusal(tmp_path, {}, {"proxy_jump": text})


@pytest.mark.parametrize("port", PORTS)
def test_a_port_must_be_a_valid_port_number(tmp_path: Path, port: object) -> None:
    assert "nodes[0].port: " in refusal(tmp_path, {"port": port})


@pytest.mark.parametrize("address", ["n0:22", "::1%eth0;id", "::1%", "fe80::1%a%b", "[::1]", "::1::", "a%b"])
def test_an_invalid_ipv6_address_is_refused(tmp_path: Path, address: str) -> None:
    assert "nodes[0].address: " in refusal(tmp_path, {"address": address})


@pytest.mark.parametrize("config", ["-F", "-oProxyCommand=x", "a\nb"])
def test_an_option_as_a_file_name_is_refused(tmp_path: Path, config: str) -> None:
    assert "ssh.config: " in refusal(tmp_path, {}, {"config": config})


def test_a_look_alike_letter_is_shown_escaped(tmp_path: Path) -> None:
    assert "nodes[0].address: 'n\\u0430de' is no" in refusal(tmp_path, {"address": "n\u0430de"})


@pytest.mark.processes
@pytest.mark.parametrize(
    "text", [f"-oProxyCommand=touch {CANARY}", f"a;touch {CANARY}", f"$(touch {CANARY})", "n\u0430de", ""]
)
@pytest.mark.parametrize("with_inventory", [True, False])
def test_a_command_in_the_option_nodes_is_refused(tmp_path: Path, text: str, *, with_inventory: bool) -> None:
    if with_inventory:
        write_inventory(tmp_path / "inventory.yaml", {"accelerator": "cpu", "nodes": [{"name": "n0"}]}, {})
    orch = Orch(tmp_path)
    assert "--nodes" in orch("ssh-launch", "--nodes", text, "--", "true", code=2).stderr
    assert not orch.home.exists()
    assert not (tmp_path / CANARY).exists()


# Without texts that a line of ssh_config cannot hold, or that mean something else there.
IN_CONFIG = [text for text in NASTY if text.strip() == text != "" and not set(text) & set("\n\0\"'\\#\t")]


@pytest.mark.parametrize("text", IN_CONFIG)
@pytest.mark.parametrize("keyword", ["HostName", "User", "HostKeyAlias", "ProxyJump"])
def test_a_command_in_a_name_of_the_ssh_configuration_is_refused(tmp_path: Path, keyword: str, text: str) -> None:
    message = _refused(tmp_path, f"{keyword} {text}")
    assert f"{keyword} of n0: " in message


@pytest.mark.parametrize("name", ["gpu0..cluster", ".cluster", "x" * 64])
def test_a_host_name_that_no_resolver_accepts_is_refused_by_its_keyword(tmp_path: Path, name: str) -> None:
    """The resolver's idna codec raises a UnicodeError, which must not count as output of a login shell."""
    assert "HostName of n0: " in _refused(tmp_path, f"HostName {name}")


@pytest.mark.parametrize("port", ["0", "65536", "22 -oProxyCommand=x", "22;id", "\u0662\u0662"])
def test_a_port_of_the_ssh_configuration_is_checked(tmp_path: Path, port: str) -> None:
    assert "Port of n0: " in _refused(tmp_path, f"Port {port}")


def _refused(folder: Path, line: str) -> str:
    """The error for a configuration whose proxy command would leave a file if it ran."""
    config = folder / "ssh_config"
    config.write_text(f"Host *\n  {line}\n  ProxyCommand touch {folder}/{CANARY} ; : %h %r %p\n", encoding="utf-8")
    transport = SshTransport(Node(name="n0"), SshOptions(config=str(config)))
    with pytest.raises(NodeError) as caught:
        transport.open(["true"])
    transport.close()
    assert not (folder / CANARY).exists()
    return str(caught.value)


def test_a_proxy_command_with_checked_names_is_run(tmp_path: Path) -> None:
    """The tests above would otherwise pass without a check."""
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n  ProxyCommand touch {tmp_path}/{CANARY} ; : %h %r %p\n", encoding="utf-8")
    transport = SshTransport(Node(name="n0"), SshOptions(config=str(config), connect_timeout_s=1))
    with pytest.raises(NodeError):
        transport.open(["true"])
    transport.close()
    assert (tmp_path / CANARY).exists()


def test_paths_on_the_nodes_may_have_any_characters(farm: Farm, tmp_path: Path) -> None:
    """S5: the working folder of a node, over a real ssh."""
    folder = farm.home / 'it\'s; touch CANARY $(touch CANARY) `touch CANARY` "x" -y &'
    inventory = farm.inventory(tmp_path, nodes=1, shared=True)
    text = inventory.read_text("utf-8")
    workdir = next(line.split(": ", 1)[1] for line in text.splitlines() if "workdir: " in line)
    quoted = "'" + str(folder).replace("'", "''") + "'"
    inventory.write_text(text.replace(workdir, quoted), "utf-8")
    orch = Orch(tmp_path)
    orch("ssh-launch", "--", "sh", "-c", 'echo "$ORCH_RUN_DIR"')
    (line,) = [line["text"] for line in orch.lines() if line["stream"] == "out"]
    assert line.startswith(f"{folder}/runs/")
    assert not [path for root in (tmp_path, farm.home) for path in root.rglob(CANARY)]


@pytest.mark.parametrize("field", ["workdir", "python"])
@pytest.mark.parametrize("text", ["-x/y", "--", "a\nb", "/a\nb", "/a\x1bb"])
def test_an_option_as_a_path_on_a_node_is_refused(tmp_path: Path, field: str, text: str) -> None:
    assert f"nodes[0].{field}: " in refusal(tmp_path, {field: text})
