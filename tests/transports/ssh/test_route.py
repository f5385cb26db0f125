from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from orchestrator.errors import NodeError
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.ssh.commands import command_line
from orchestrator.transports.ssh.config import UserConfig, read_config
from orchestrator.transports.ssh.route import Hop, PlannedSsh, RouteError, route
from orchestrator.transports.ssh.transport import route_to


def hops(config: str, node: Node, proxy_jump: str | None = None) -> list[Hop]:
    parsed = UserConfig.from_text(config)
    return route(node, proxy_jump, lambda host, _user, _port: parsed.lookup(host))


NODE = Node(name="n0")


def ways(found: list[Hop]) -> list[str]:
    return [f"{hop.user}@{hop.host}:{hop.port}" for hop in found]


def test_user_id_without_a_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with any user id."""

    def unknown(uid: int) -> str:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(NodeError, match="has no name on this machine") as caught:
        route_to(NODE, SshOptions())
    assert caught.value.hint == "set the environment variable USER"


ALIAS = "Host n0\n HostName 10.0.0.1\n Port 2200\n User train\n IdentityFile ~/k\n IdentitiesOnly yes\n"


def test_an_alias_is_resolved_by_the_configuration() -> None:
    (hop,) = hops(ALIAS + ' HostKeyAlias n0-key\n UserKnownHostsFile "/a b" /c\n', Node(name="n0"))
    assert ways([hop]) == ["train@10.0.0.1:2200"]
    assert (hop.identities, hop.identities_only, hop.key_name) == ((Path.home() / "k",), True, "n0-key")
    assert hop.user_known_hosts == (Path("/a b"), Path("/c"))
    assert hop.global_known_hosts == (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))


def test_the_inventory_wins_over_the_configuration() -> None:
    assert ways(hops(ALIAS, Node(name="x", address="n0", user="me", port=22))) == ["me@10.0.0.1:22"]


@pytest.mark.parametrize(
    ("jump", "expected"),
    [
        ("gate", ["train@gate:22"]),
        ("me@gate:2222", ["me@gate:2222"]),
        ("ssh://me@gate:2222/", ["me@gate:2222"]),
        ("me@[fe80::1]:2222", ["me@fe80::1:2222"]),
        ("fe80::1", ["train@fe80::1:22"]),
        ("a@[::1]:22,b@c:2200,[fe80::1%eth0]", ["a@::1:22", "b@c:2200", "train@fe80::1%eth0:22"]),
        ("a,b", ["train@a:22", "train@b:22"]),
        ("alias", ["train@192.0.2.1:22"]),
    ],
)
def test_jump_hosts_come_first_and_follow_the_configuration_themselves(jump: str, expected: list[str]) -> None:
    config = "Host alias\n HostName 192.0.2.1\nHost *\n User train\n"
    assert ways(hops(config, Node(name="n0"), jump)) == [*expected, "train@n0:22"]
    assert ways(hops(f"Host n0\n ProxyJump {jump}\n{config}", Node(name="n0"))) == [*expected, "train@n0:22"]


def test_a_jump_host_may_be_behind_another_and_is_not_its_own() -> None:
    config = "Host inner\n ProxyJump outer\nHost n0\n ProxyJump inner\nHost *\n User u\n"
    assert ways(hops(config, Node(name="n0"))) == ["u@outer:22", "u@inner:22", "u@n0:22"]
    assert ways(hops("Host *\n User u\n", Node(name="gate"), "gate")) == ["u@gate:22"]
    assert ways(hops("Host n0\n ProxyJump none\nHost *\n ProxyJump x\n User u\n", Node(name="n0"))) == ["u@n0:22"]


def test_jump_hosts_in_a_circle_are_an_error() -> None:
    with pytest.raises(RouteError, match="circle"):
        hops("Host a\n ProxyJump b\nHost b\n ProxyJump a\n", Node(name="a"))


def test_a_proxy_command_is_complete() -> None:
    (hop,) = hops("Host n0\n ProxyCommand nc %h %p ~/%%h\n HostName h\n Port 99\n", Node(name="n0"))
    assert hop.proxy_command == "nc h 99 ~/%h"


def test_proxy_command_gets_the_inventorys_user_and_port() -> None:
    config = "Host n0\n ProxyCommand nc %n %h %p %r\n HostName h\n Port 99\n User other\n"
    (hop,) = hops(config, Node(name="n0", user="train", port=2200))
    assert hop.proxy_command == "nc n0 h 2200 train"


def test_certificate_files_are_those_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/train")
    (hop,) = hops("CertificateFile ~/.ssh/%r-%h-cert.pub\nUser u\n", Node(name="n0"))
    assert hop.certificates == (Path("/home/train/.ssh/u-n0-cert.pub"),)


def test_included_files_apply_where_they_are_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/d").mkdir(parents=True)
    (tmp_path / ".ssh/d/one").write_text("Host n1\n HostName 10.0.0.1\n")
    (tmp_path / ".ssh/d/two").write_text("Host n2\n HostName 10.0.0.2\n")
    (tmp_path / ".ssh/config").write_text("Include d/*\nUser everyone\nHost n1\n Include ~/.ssh/none\n Port 99\n")
    text = read_config(None).text
    assert ways(hops(text, Node(name="n1"))) == ["everyone@10.0.0.1:99"]
    assert ways(hops(text, Node(name="n2"))) == ["everyone@10.0.0.2:22"]


def test_files_that_include_each_other_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"Include {tmp_path}/config\n")
    with pytest.raises(RouteError, match="include each other"):
        read_config(tmp_path / "config")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('Include "x', r"Include of .*/config: No closing quotation"),
        ('UserKnownHostsFile "x y', "UserKnownHostsFile of n0: No closing quotation"),
        ('Match exec "x', "config line 1: invalid quotes"),
        ("Match user u\nNoSuchKeyword x", "config: line 2: Bad configuration option: nosuchkeyword"),
        ("CertificateFile ~no-such-user/cert", "home directory"),
        ("User u\n= x", "config line 2: not a keyword with a value: = x"),
    ],
)
def test_a_line_that_cannot_be_parsed_is_an_error_of_the_configuration(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(NodeError, match=f"ssh configuration: .*{reason}") as caught:
        hops_of_file(tmp_path, line)
    assert caught.value.node == "n0"


def hops_of_file(folder: Path, config: str, node: Node = NODE) -> list[Hop]:
    """The hops by a configuration file that orch reads."""
    file = folder / "config"
    file.write_text(config + "\n")
    return route_to(node, PlannedSsh(str(file), proxy_jump=None, host_keys="strict", fanout=1, connect_timeout_s=1.0))


EVALUATED = """CanonicalizeHostname yes
Match host n0 user train
  HostName 10.0.0.1
  ProxyJump gate
  UserKnownHostsFile /a /c
  IdentityFile ~/.ssh/%h
  CertificateFile "/d e"
  CertificateFile ${CERTIFICATES}/f
Match user train
  HostName 10.0.0.2
Match final all
  Port 2200
"""


def test_what_paramiko_cannot_evaluate_is_evaluated_by_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CanonicalizeHostname without CanonicalDomains, Match by the inventory's user, Match final."""
    monkeypatch.setenv("CERTIFICATES", "/certificates")
    jump, hop = hops_of_file(tmp_path, EVALUATED, Node(name="n0", user="train"))
    assert ways([jump, hop])[1] == "train@10.0.0.1:2200"
    assert ways([jump])[0].endswith("@gate:2200")
    assert hop.identities == (Path("~/.ssh/10.0.0.1").expanduser(),)
    assert hop.certificates == (Path("/d e"), Path("/certificates/f"))
    assert hop.user_known_hosts == (Path("/a"), Path("/c"))
    assert ways(hops_of_file(tmp_path, EVALUATED, Node(name="n0", user="me", port=99))) == ["me@n0:99"]


def test_without_ssh_the_line_that_needs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ways(hops_of_file(tmp_path, ALIAS)) == ["train@10.0.0.1:2200"]
    with pytest.raises(
        NodeError, match=r"Match in .*/config line 8 needs the program ssh, which is not installed here"
    ):
        hops_of_file(tmp_path, f"{ALIAS}\nMatch final all")


@pytest.mark.parametrize(
    ("line", "socket"),
    [
        ("", "/env"),
        ("IdentityAgent SSH_AUTH_SOCK", "/env"),
        ("IdentityAgent $OTHER", "/other"),
        ("IdentityAgent ${OTHER}/%r", "/other/u"),
        ("IdentityAgent /path", "/path"),
        ("IdentityAgent none", None),
        ("IdentityAgent $NOT_SET", None),
    ],
)
@pytest.mark.parametrize("evaluated", ["", "\nMatch final all"])
def test_identity_agent_is_that_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, socket: str | None, evaluated: str
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/env")
    monkeypatch.setenv("OTHER", "/other")
    monkeypatch.delenv("NOT_SET", raising=False)
    (hop,) = hops_of_file(tmp_path, f"User u\n{line}{evaluated}")
    assert hop.agent == (Path(socket) if socket else None)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["python3", "-c", "a;b"], "python3 -c 'a;b'"),
        (["~/my env/python"], "~/'my env/python'"),
        (["/x/$(id)", "~/y"], "'/x/$(id)' '~/y'"),
        (["~root/x"], "'~root/x'"),
    ],
)
def test_the_login_shell_expands_nothing_but_the_home_folder(argv: list[str], line: str) -> None:
    assert command_line(argv) == line
