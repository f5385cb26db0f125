"""The program ssh is chosen where paramiko cannot log in, and it alone; a run over it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.endpoint.access import transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LoginRefused
from orchestrator.inventory.model import Node, SshOptions
from tests.grounds.cli import Orch
from tests.grounds.hostbased import open_hostbased
from tests.grounds.sshd import Farm


def remark(farm: Farm, config: Path) -> str:
    """Connect as orch does, and return what it says of the connection."""
    transport = transport_factory("ssh", SshOptions(config=str(config)))(Node(name="n0"))
    with Endpoint.connect(transport, str(farm.python)) as endpoint:
        return endpoint.remark


def test_paramiko_is_chosen_if_it_can_log_in(farm: Farm, tmp_path: Path) -> None:
    config = farm.write_ssh_config(tmp_path / "config", HostbasedAuthentication="yes", GSSAPIAuthentication="yes")
    assert not remark(farm, config)


def test_a_run_over_hostbased_logins_uses_the_program_ssh(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = farm.write_ssh_config(tmp_path / "config", HostbasedAuthentication="yes", IdentityFile="none")
    farm.inventory(tmp_path, ssh={"config": str(config)})
    with open_hostbased(farm, tmp_path) as folder:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        orch = Orch(tmp_path)
        done = orch("ssh-launch", "--", "sh", "-c", "echo of $ORCH_NODE")
    cause = "reached by the program ssh, which never prompts, because ssh_config sets HostbasedAuthentication"
    assert done.stderr.count(f"n[0-1]: {cause}") == 1
    assert "[n0:0] of n0" in done.stdout
    assert "[n1:1] of n1" in done.stdout


def test_the_words_of_a_refused_program_follow_those_of_paramiko(farm: Farm, tmp_path: Path) -> None:
    config = farm.write_ssh_config(tmp_path / "config", HostbasedAuthentication="yes", IdentityFile="none")
    with pytest.raises(LoginRefused) as caught:
        remark(farm, config)
    assert caught.value.reason == (
        "no key was accepted (there is none); the program ssh, tried because ssh_config sets HostbasedAuthentication, "
        "reports: Permission denied (publickey)."
    )
    assert caught.value.hint == f"`ssh -F {config} n0 true`"


def test_missing_kerberos_ticket_is_named_if_there_is_no_key(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    klist = tmp_path / "klist"
    klist.write_text("#!/bin/sh\nexit 1\n")
    klist.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = farm.write_ssh_config(tmp_path / "config", GSSAPIAuthentication="yes", IdentityFile="none")
    with pytest.raises(LoginRefused, match=r"there is none; .*no Kerberos ticket: kinit gets one"):
        remark(farm, config)


def test_token_that_requires_a_pin_is_named_with_the_remedy(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of ssh are those of OpenSSH 9.2 with a token of SoftHSM; only ssh-add asks for a PIN."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\necho pin required >&2\necho u@127.0.0.10: 'Permission denied (publickey).' >&2\nexit 255\n"
    )
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = farm.write_ssh_config(tmp_path / "config", PKCS11Provider="/usr/lib/token.so", IdentityFile="none")
    with pytest.raises(LoginRefused, match="the token of PKCS11Provider requires its PIN") as caught:
        remark(farm, config)
    assert caught.value.hint.startswith("`ssh-add -s` with the library of PKCS11Provider")


@pytest.mark.parametrize(
    ("server", "client", "cause"),
    [
        ({"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"}, {}, "paramiko reports: "),
        ({}, {"RevokedHostKeys": os.devnull}, "ssh_config sets RevokedHostKeys"),
    ],
)
def test_the_program_connects_where_paramiko_must_not_or_cannot(
    farm: Farm, tmp_path: Path, server: dict[str, str], client: dict[str, str], cause: str
) -> None:
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=None, **client)
    with farm.restarted(**server):
        assert cause in remark(farm, config)
