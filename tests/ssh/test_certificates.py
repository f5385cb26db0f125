"""Certificates of users and hosts, tested with a real sshd."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import NodeError
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds.components import program
from tests.grounds.ssh_agent import open_agent
from tests.grounds.sshd import Farm, certify, make_key

KINDS = ["ed25519", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("rsa", "ecdsa"))]


def login_output(config: Path, *, node: str = "n0", host_keys: str = "strict") -> str:
    """Log in, run a program and return its output."""
    options = SshOptions.model_validate({"config": str(config), "host_keys": host_keys})
    transport = SshTransport(Node(name=node), options)
    try:
        return transport.open(["sh", "-c", "echo welcome"]).read_some(timeout_s=20).decode()
    finally:
        transport.close()


@pytest.fixture
def authority(farm: Farm, tmp_path: Path) -> Iterator[Path]:
    """An authority; only its certificates are accepted."""
    key = make_key(tmp_path / "authority")
    trusted = farm.folder / f"trusted-{os.getpid()}.pub"
    trusted.write_bytes(key.with_suffix(".pub").read_bytes())
    with farm.restarted(TrustedUserCAKeys=str(trusted), AuthorizedKeysFile="none"):
        yield key


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty ssh-agent for this test."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with open_agent(tmp_path / "agent"):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_beside_the_key_is_used(farm: Farm, authority: Path, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key", kind=kind)
    config = farm.write_ssh_config(tmp_path / "config", IdentityFile=str(key))
    with pytest.raises(NodeError, match=r"no key was accepted \(1 refused\)"):
        login_output(config)
    certify(tmp_path / "key.pub", authority, "-n", farm.user)
    assert login_output(config) == "welcome\n"


def test_a_certificate_file_of_the_configuration_is_used(farm: Farm, authority: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    unsigned_key = make_key(tmp_path / "unsigned")
    certificate = certify(tmp_path / "key.pub", authority, "-n", farm.user).rename(tmp_path / f"of-{farm.user}")
    config = farm.write_ssh_config(
        tmp_path / "config", IdentityFile=f"{unsigned_key}\n  IdentityFile {key}", CertificateFile=f'"{tmp_path}/of-%r"'
    )
    assert login_output(config) == "welcome\n"
    certificate.unlink()
    with pytest.raises(NodeError, match=rf"CertificateFile {certificate} does not exist"):
        login_output(config)


@pytest.mark.usefixtures("ssh_agent")
def test_a_certificate_for_a_key_of_the_agent_is_used(farm: Farm, authority: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    subprocess.run([program("ssh-add"), "-q", str(key)], check=True)
    key.unlink()  # the agent alone has it
    certify(tmp_path / "key.pub", authority, "-n", farm.user)
    assert login_output(farm.write_ssh_config(tmp_path / "config", IdentityFile=str(key))) == "welcome\n"


@pytest.mark.usefixtures("ssh_agent")
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_the_agent_holds_is_used(farm: Farm, authority: Path, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key", kind=kind)
    certificate = certify(tmp_path / "key.pub", authority, "-n", farm.user)
    subprocess.run([program("ssh-add"), "-q", str(key)], check=True)
    certificate.unlink()
    subprocess.run([program("ssh-add"), "-q", "-d", f"{key}.pub"], check=True)  # all but the certificate
    key.unlink()
    assert login_output(farm.write_ssh_config(tmp_path / "config", IdentityFile=str(key))) == "welcome\n"


def test_the_key_itself_is_used_if_its_certificate_has_expired(farm: Farm, tmp_path: Path) -> None:
    """The account accepts the key; the certificate beside it is refused first."""
    key = tmp_path / "key"
    key.write_bytes(farm.client_key.read_bytes())
    key.chmod(0o600)
    (tmp_path / "key.pub").write_bytes(farm.client_key.with_suffix(".pub").read_bytes())
    certify(tmp_path / "key.pub", make_key(tmp_path / "authority"), "-n", farm.user, "-V", "-2h:-1h")
    assert login_output(farm.write_ssh_config(tmp_path / "config", IdentityFile=str(key))) == "welcome\n"


def test_a_broken_certificate_is_named(farm: Farm, authority: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    (tmp_path / "broken").write_text("ssh-ed25519-cert-v01@openssh.com !!!\n")
    config = farm.write_ssh_config(tmp_path / "config", IdentityFile=str(key), CertificateFile=str(tmp_path / "broken"))
    with pytest.raises(NodeError, match=f"{tmp_path}/broken: "):
        login_output(config)
    assert authority.exists()


class Host:
    """The farm with a host key that is known only by its certificate."""

    def __init__(self, farm: Farm, folder: Path, authority_kind: str = "ed25519") -> None:
        self.farm = farm
        self.folder = folder
        self.key = make_key(farm.folder / f"certified-{os.getpid()}-{time.monotonic_ns()}")
        self.authority = make_key(folder / "host-authority", kind=authority_kind)
        self.known = folder / "known"
        self.write_known_hosts()

    def write_known_hosts(self, marker: str = "@cert-authority", hosts: str = "127.*,[127.*]:*") -> None:
        """Write the authority's line into known_hosts."""
        public = self.authority.with_suffix(".pub").read_text()
        self.known.write_text(f"{marker} {hosts} {public}")

    def login(self, *options: str, host_keys: str = "strict") -> str:
        """Log in to n0, whose host key has a certificate made with these options of ssh-keygen."""
        certificate = certify(self.key.with_suffix(".pub"), self.authority, *options)
        config = self.farm.write_ssh_config(self.folder / "config", known_hosts=self.known)
        with self.farm.restarted(HostKey=str(self.key), HostCertificate=str(certificate)):
            return login_output(config, host_keys=host_keys)


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_with_a_certificate_of_a_known_authority_is_trusted(farm: Farm, tmp_path: Path, kind: str) -> None:
    assert Host(farm, tmp_path, kind).login("-h", "-n", farm.addresses(1)[0]) == "welcome\n"


def test_a_host_certificate_may_be_for_a_pattern_of_names(farm: Farm, tmp_path: Path) -> None:
    assert Host(farm, tmp_path).login("-h", "-n", "other,127.0.0.*") == "welcome\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-h", "-n", "127.0.0.99"], "its certificate is for 127.0.0.99"),
        (["-h"], "its certificate is for no host by name"),
        (["-h", "-n", "127.0.0.10", "-V", "-2h:-1h"], "its certificate has expired or is not valid yet"),
        (["-h", "-n", "127.0.0.10", "-V", "+1h:+2h"], "its certificate has expired or is not valid yet"),
    ],
)
@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_host_certificate_that_does_not_match_the_host_is_refused(
    farm: Farm, tmp_path: Path, options: list[str], reason: str, host_keys: str
) -> None:
    host = Host(farm, tmp_path)
    written = host.known.read_text()
    with pytest.raises(NodeError) as caught:
        host.login(*options, host_keys=host_keys)
    assert str(caught.value).endswith(f"not certified by an authority of {host.known} line 1: {reason}")
    assert host.known.read_text() == written


def test_a_host_certificate_of_another_authority_is_refused(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path)
    host.authority = make_key(tmp_path / "another")
    with pytest.raises(NodeError, match="its certificate is of another authority"):
        host.login("-h", "-n", "127.0.0.10")


def test_a_host_certificate_signed_with_sha1_is_refused(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path, "rsa")
    with pytest.raises(NodeError, match="its certificate is signed with SHA-1"):
        host.login("-h", "-n", "127.0.0.10", "-t", "ssh-rsa")


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_plain_host_key_is_refused_if_only_an_authority_is_known(farm: Farm, tmp_path: Path, host_keys: str) -> None:
    host = Host(farm, tmp_path)
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=host.known)
    with pytest.raises(NodeError, match="it has no certificate"):
        login_output(config, host_keys=host_keys)


def test_a_known_plain_host_key_is_accepted_beside_an_authority(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path)
    host.known.write_text(host.known.read_text() + farm.known_hosts.read_text())
    assert login_output(farm.write_ssh_config(tmp_path / "config", known_hosts=host.known)) == "welcome\n"


def test_certificates_of_a_revoked_authority_are_refused(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path)
    host.known.write_text(host.known.read_text() + host.known.read_text().replace("@cert-authority", "@revoked"))
    with pytest.raises(NodeError, match="its certificate is of another authority"):
        host.login("-h", "-n", "127.0.0.10")


def test_a_revoked_key_is_refused_even_with_a_valid_certificate(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path)
    public = host.key.with_suffix(".pub").read_text()
    host.known.write_text(host.known.read_text() + f"@revoked [127.0.0.10]:{farm.port} {public}")
    with pytest.raises(NodeError, match="is revoked"):
        host.login("-h", "-n", "127.0.0.10")


def test_an_authority_for_other_hosts_is_not_used_for_this_one(farm: Farm, tmp_path: Path) -> None:
    host = Host(farm, tmp_path)
    host.write_known_hosts(hosts="*.example.com")
    with pytest.raises(NodeError, match="is unknown: ssh-ed25519"):
        host.login("-h", "-n", "127.0.0.10")
