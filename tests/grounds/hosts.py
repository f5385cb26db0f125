"""
Real hosts that can be cut off: network namespaces joined by a bridge, each with a hostname, processes, files and an sshd of its own.

The machine that orch runs on is one more member of the network, so its line can be cut as well. All hosts share one
kernel: a host that comes back has the same boot id as before. Everything lives in namespaces that this module made.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.grounds import accounts
from tests.grounds.accounts import Account
from tests.grounds.cli import Orch
from tests.grounds.components import missing, program
from tests.grounds.inventories import write_inventory
from tests.grounds.keeper import Keeper, children_of, kill, kill_each
from tests.grounds.python import node_python
from tests.grounds.sshd import make_key, write_entrance
from tests.until import until

PORT = 22
_NETWORK = "10.77.0"
_CONTROLLER = 254
_NOBODY = "02:00:00:00:de:ad"


@dataclass(slots=True)
class Member:
    """A network namespace with a cable to the bridge."""

    name: str
    address: str
    keeper: Keeper
    pid: int
    """A process in its namespaces, seen from outside."""
    switch: int
    """A process in the bridge's namespace."""

    def enter(self, *kinds: str) -> list[str]:
        """The words before a command that is to run in these namespaces of it."""
        return [program("nsenter"), "--target", str(self.pid), *(f"--{kind}" for kind in kinds)]

    def link(self, *, up: bool) -> None:
        """Plug the cable in, or pull it: nothing gets in or out then, and nobody is told."""
        _run(*_enter(self.switch), program("ip"), "link", "set", self.name, "up" if up else "down")

    def drop_from(self, other: Member) -> None:
        """Lose silently what comes from the other member: it sends to an Ethernet address that nobody has."""
        way = ["neighbour", "replace", self.address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"]
        _run(*_enter(other.pid), program("ip"), *way)

    def send_to_all(self) -> None:
        """Take back every `drop_from` that was made with this member as the other one."""
        _run(*_enter(self.pid), program("ip"), "neighbour", "flush", "dev", "eth0", "nud", "permanent")


@dataclass(slots=True)
class Host(Member):
    """A member that one can log in to; `home` is the account's, a file system of this host alone."""

    home: Path
    config: Path

    def run(self, *argv: str) -> str:
        """What a command prints that root runs on the host."""
        return _run(*self.enter("net", "uts", "pid", "mount"), *argv)

    def path(self, inside: Path | str) -> Path:
        """A file of the host, as it is reached from outside."""
        return Path(f"/proc/{self.pid}/root", str(inside).lstrip("/"))

    def processes(self) -> dict[int, str]:
        """Pid, as seen from outside, -> command name of all that runs on the host but sshd's own."""
        return {pid: name for pid, name in self.keeper.processes_below(self.pid).items() if not name.startswith("sshd")}

    def freeze(self) -> None:
        """Stop every process: the kernel still takes connections, but nobody says a word."""
        for pid in self.keeper.processes_below(self.pid):
            kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let every process go on."""
        for pid in self.keeper.processes_below(self.pid):
            kill(pid, signal.SIGCONT)

    def die(self) -> None:
        """Lose power: every process is gone, and nothing answers."""
        self.link(up=False)
        until(lambda: not kill_each(self.keeper.processes_below(self.pid)), what="the host's processes to end")

    def boot(self) -> None:
        """Start sshd, with the cable plugged in."""
        self.link(up=True)
        log = self.config.with_suffix(".log")
        env = {"PATH": os.environ.get("PATH", os.defpath)}
        self.keeper.start([program("sshd"), "-D", "-e", "-f", str(self.config)], env=env, log=log)
        ready = ["bash", "-c", f"read -r -n 4 word < /dev/tcp/{self.address}/{PORT}; echo $word"]
        until(
            lambda: _said([*self.enter("net"), *ready]).startswith("SSH"),
            what=lambda: f"sshd of {self.name}: {log.read_text('utf-8') if log.exists() else 'no log'}",
        )


@dataclass(slots=True)
class Hosts:
    """The hosts h0, h1, … and the controller beside them; made by `open_hosts`."""

    folder: Path
    account: Account
    python: Path
    client_key: Path
    controller: Member
    hosts: list[Host] = field(default_factory=list)

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    @property
    def ssh_config(self) -> Path:
        """What the controller's ssh goes by."""
        return self.folder / "ssh_config"

    def inventory(self, folder: Path, *, devices: int = 1, **extra: object) -> Path:
        """Write `folder`/inventory.yaml for all hosts; further keys are merged into what is written anyway."""
        base = {
            "name": "hosts",
            "accelerator": "cpu",
            "devices": devices,
            "transport": "ssh",
            "defaults": {"python": str(self.python), "workdir": str(self.account.home / "work")},
            "ssh": {"config": str(self.ssh_config)},
            "nodes": [{"name": host.name, "address": host.address} for host in self.hosts],
        }
        return write_inventory(folder / "inventory.yaml", base, extra)

    def orch(self, folder: Path) -> Orch:
        """orch on the controller, in that folder."""
        return Orch(folder, prefix=tuple(self.controller.enter("net")))

    def heal(self) -> None:
        """End what runs on the hosts, and take back every fault."""
        for member in (self.controller, *self.hosts):
            member.link(up=True)
            member.send_to_all()
        for host in self.hosts:
            host.thaw()
            until(lambda host=host: not kill_each(host.processes()), what="processes to end")  # type: ignore[misc]
            if not host.keeper.processes_below(host.pid):
                host.boot()


@contextlib.contextmanager
def open_hosts(count: int) -> Iterator[Hosts]:
    """
    Start hosts h0 to h<count-1> and a controller; on leaving, processes, namespaces, files and the account are gone.

    Needs root, for the namespaces; anybody else's test is skipped (in CI it fails).
    """
    for name in ("sshd", "ssh-keygen", "ip", "unshare", "nsenter"):
        program(name)
    if not accounts.is_root():
        missing("root, who may make network namespaces,")
    folder = Path(tempfile.mkdtemp(prefix="orch-hosts-"))
    folder.chmod(0o755)
    account = accounts.own_account(folder)
    with contextlib.ExitStack() as stack:
        owner = Keeper(folder, user=account.user, prefix=_unshare("net"))
        stack.callback(owner.close)
        _await_own_network(owner)
        _run(*_enter(owner.pid), program("ip"), "link", "add", "switch", "type", "bridge")
        _run(*_enter(owner.pid), program("ip"), "link", "set", "switch", "up")
        keeper = stack.enter_context(_keeper(folder / "controller", "net"))
        controller = Member("ctl", f"{_NETWORK}.{_CONTROLLER}", keeper, keeper.pid, owner.pid)
        _plug_in(controller)
        python = node_python(folder / "python", user=account.user)
        if python is None:
            missing("a Python that another account can run")
        key = make_key(folder / "client_key")
        hosts = Hosts(folder, account, python, key, controller)
        for index in range(count):
            kept = stack.enter_context(
                _keeper(folder / f"h{index}", "net", "uts", "mount", "pid", "fork", "mount-proc")
            )
            hosts.hosts.append(_make_host(hosts, index, kept, owner.pid))
        _write_ssh_files(hosts)
        for host in hosts.hosts:
            host.boot()
        yield hosts


@contextlib.contextmanager
def _keeper(folder: Path, *kinds: str) -> Iterator[Keeper]:
    folder.mkdir(mode=0o755)
    keeper = Keeper(folder, prefix=_unshare(*kinds))
    try:
        _await_own_network(keeper)
        yield keeper
    finally:
        keeper.close()


def _await_own_network(keeper: Keeper) -> None:
    """Until unshare has done its work: what is done to the namespaces before that is done to the machine's own."""
    ours = Path("/proc/self/ns/net").readlink()
    until(lambda: Path(f"/proc/{keeper.pid}/ns/net").readlink() != ours, what="a network namespace")


def _unshare(*kinds: str) -> list[str]:
    return [program("unshare"), *(f"--{kind}" for kind in kinds)]


def _enter(pid: int) -> list[str]:
    return [program("nsenter"), "--target", str(pid), "--net"]


def _plug_in(member: Member) -> None:
    ip = program("ip")
    switch, inside = _enter(member.switch), _enter(member.pid)
    pair = ["link", "add", member.name, "type", "veth", "peer", "name", "eth0", "netns", str(member.pid)]
    _run(*switch, ip, *pair)
    _run(*switch, ip, "link", "set", member.name, "master", "switch", "up")
    _run(*inside, ip, "link", "set", "lo", "up")
    _run(*inside, ip, "address", "add", f"{member.address}/24", "dev", "eth0")
    _run(*inside, ip, "link", "set", "eth0", "up")


def _make_host(hosts: Hosts, index: int, keeper: Keeper, switch: int) -> Host:
    [pid] = until(lambda: children_of(keeper.pid), what="unshare to fork")  # its child is the host's first process
    own = hosts.folder / f"h{index}"
    host = Host(f"h{index}", f"{_NETWORK}.{index + 1}", keeper, pid, switch, hosts.account.home, own / "sshd_config")
    _plug_in(host)
    host.run("hostname", host.name)
    entry = pwd.getpwnam(hosts.account.user)
    options = f"mode=0700,uid={entry.pw_uid},gid={entry.pw_gid}"
    host.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(host.home))
    names = own / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{_NETWORK}.{n + 1} h{n}\n" for n in range(16)), "utf-8")
    names.chmod(0o644)
    host.run("mount", "--bind", str(names), "/etc/hosts")
    return host


def _write_ssh_files(hosts: Hosts) -> None:
    host_key = make_key(hosts.folder / "host_key")
    authorized = hosts.folder / "authorized_keys"
    authorized.write_bytes(hosts.client_key.with_suffix(".pub").read_bytes())
    authorized.chmod(0o644)
    entrance = write_entrance(hosts.folder / "enter")
    public = " ".join(host_key.with_suffix(".pub").read_text("utf-8").split()[:2])
    known = hosts.folder / "known_hosts"
    known.write_text("".join(f"{host.address} {public}\n" for host in hosts.hosts), "utf-8")
    settings = {"User": hosts.account.user, "IdentityFile": hosts.client_key, "IdentitiesOnly": "yes"}
    settings |= {"UserKnownHostsFile": known, "GlobalKnownHostsFile": os.devnull, "StrictHostKeyChecking": "yes"}
    text = "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in hosts.hosts)
    text += f"Host h? {_NETWORK}.*\n" + "".join(f"  {key} {value}\n" for key, value in settings.items())
    hosts.ssh_config.write_text(text, "utf-8")
    for host in hosts.hosts:
        sshd = {
            "ListenAddress": f"{host.address}:{PORT}",
            "AllowUsers": f"{hosts.account.user}@{_NETWORK}.0/24",
            "HostKey": host_key,
            "PidFile": "none",
            "AuthorizedKeysFile": authorized,
            "AuthenticationMethods": "publickey",
            "StrictModes": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "MaxStartups": "256",
            "SetEnv": f"HOME={host.home}",
            "ForceCommand": entrance,
        }
        host.config.write_text("".join(f"{key} {value}\n" for key, value in sshd.items()), "utf-8")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def _said(argv: Sequence[str]) -> str:
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=10).stdout
