"""
One sshd that listens on every address of 127.0.0.0/8 and on ::1, so that each address is a node.

If root runs the tests, the nodes' account is a new unprivileged one; otherwise it is the account that runs the tests,
with another home. Keys, homes and logs are in one temporary folder; no ~/.ssh is read or written.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.grounds import accounts
from tests.grounds.accounts import Account
from tests.grounds.components import program
from tests.grounds.inventories import write_inventory
from tests.grounds.keeper import Keeper, kill, kill_each
from tests.grounds.ports import free_ports
from tests.grounds.python import node_python
from tests.grounds.ssh_files import (
    authorize,
    client_settings,
    known_hosts_line,
    server_settings,
    write_client_config,
    write_server_config,
)
from tests.until import until

ALIASES = 8
_FIRST_ADDRESS = ipaddress.ip_address("127.0.0.10")
_KNOWN_ADDRESSES = 1024
_ESTABLISHED = "01"  # in /proc/net/tcp


class Farm:
    """A running sshd and the keys and files for logins to it; made by `open_farm`."""

    def __init__(self, folder: Path, account: Account, *, python: Path, keeper: Keeper) -> None:
        self.folder = folder
        self.user = account.user
        self.home = account.home
        self.is_own_account = account.is_own
        """The nodes run as a separate account; False: as the account that runs the tests."""
        self.python = python
        """Interpreter of the nodes: it can import torch if the tests can, never the project."""
        (self.port,) = free_ports(1)
        self.known_hosts = folder / "known_hosts"
        self._account = account
        self._keeper = keeper
        self._host_key = make_key(folder / "host_key")
        self.client_key = make_key(folder / "client_key")
        self._write_known_hosts(self._host_key)
        self._authorized_keys = authorize(self.client_key, folder / "authorized_keys")
        self.ssh_config = self.write_ssh_config(folder / "ssh_config")
        self._options: dict[str, str] = {}
        self._pid = 0
        self._start({})

    def addresses(self, count: int) -> list[str]:
        """The first `count` addresses; `n0` to `n7` are aliases of the first eight, and 1,024 are in `known_hosts`."""
        return [str(_FIRST_ADDRESS + index) for index in range(count)]

    def write_ssh_config(self, path: Path, *, known_hosts: Path | None = None, **options: str) -> Path:
        """Write a client configuration for aliases and addresses; `options` are ssh_config keywords that take precedence."""
        aliases = {f"n{index}": address for index, address in enumerate(self.addresses(ALIASES))}
        known_hosts = known_hosts or self.known_hosts
        settings = client_settings(user=self.user, port=self.port, key=self.client_key, known_hosts=known_hosts)
        return write_client_config(path, aliases, pattern="n? 127.* ::1", settings=settings, winning=options)

    def inventory(
        self,
        folder: Path,
        *,
        nodes: int | Sequence[str] = 2,
        devices: int = 1,
        aliases: bool = False,
        shared: bool = False,
        **extra: object,
    ) -> Path:
        """
        Write `folder`/inventory.yaml for nodes n0, n1, … of the farm.

        Args:
            nodes: the number of nodes, or names out of n0 … n7.
            aliases: without addresses, so that the names are resolved by ssh_config alone.
            shared: one work folder for all nodes, as on a shared file system; otherwise one per node.
            extra: further top-level keys; mappings are merged into the defaults.
        """
        names = [f"n{index}" for index in range(nodes)] if isinstance(nodes, int) else list(nodes)
        work = self.home / secrets.token_hex(4)  # orch makes it
        entries = []
        for name in names:
            address = {} if aliases else {"address": str(_FIRST_ADDRESS + int(name.removeprefix("n")))}
            workdir = {} if shared else {"workdir": str(work / name)}
            entries.append({"name": name, **address, **workdir})
        base = {
            "name": "farm",
            "accelerator": "cpu",
            "devices": devices,
            "transport": "ssh",
            "defaults": {"python": str(self.python), **({"workdir": str(work)} if shared else {})},
            "ssh": {"config": str(self.ssh_config)},
            "nodes": entries,
        }
        return write_inventory(folder / "inventory.yaml", base, extra)

    def processes(self) -> dict[int, str]:
        """Pid -> command name of all processes on the nodes' side, detached or not, without sshd's."""
        return {pid: command for pid, command in self._keeper.processes().items() if not is_connection(command)}

    def end_processes(self) -> None:
        """Kill all processes on the nodes' side."""
        until(lambda: not kill_each(self.processes()), awaited="the farm's processes to end")

    def drop_connections(self) -> None:
        """Cut every connection that is open now from the nodes' side; processes keep running, new connections stay."""
        dropped = kill_each(self.connections())
        until(lambda: dropped.keys().isdisjoint(self.connections()), awaited="connections to end")

    def connections(self) -> dict[int, str]:
        """Pid -> command name of sshd's processes for open connections."""
        return {pid: name for pid, name in self._keeper.processes().items() if is_connection(name) and pid != self._pid}

    def established(self) -> dict[str, int]:
        """The number of TCP connections to each address that has some, by the kernel's table, as `ss -tn` shows it."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
        local = [row[1].split(":") for row in rows if row[3] == _ESTABLISHED]
        addresses = [
            socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder))
            for address, port in local
            if int(port, 16) == self.port
        ]
        return dict(Counter(addresses))

    @contextlib.contextmanager
    def restarted(self, **options: str) -> Iterator[None]:
        """Run with other sshd_config keywords (`MaxStartups="2"`) within the block; open connections stay."""
        self._stop()
        self._start(options)
        try:
            yield
        finally:
            self._stop()
            self._start({})

    @contextlib.contextmanager
    def password(self) -> Iterator[str]:
        """Give the nodes' own account a password within the block; sshd accepts it if `restarted` enables passwords."""
        word = secrets.token_urlsafe(12)
        accounts.set_password(self._account, word)
        try:
            yield word
        finally:
            accounts.set_password(self._account, None)

    @contextlib.contextmanager
    def counted(self, **options: str) -> Iterator[Callable[[], int]]:
        """Run with other sshd_config keywords within the block, and count the connections in it."""
        log = self.folder / "sshd.log"
        before = log.stat().st_size
        with self.restarted(LogLevel="VERBOSE", **options):
            startup_probes = log.read_bytes()[before:].count(b"Connection from")
            yield lambda: log.read_bytes()[before:].count(b"Connection from") - startup_probes

    @contextlib.contextmanager
    def restart_with_new_host_key(self) -> Iterator[None]:
        """Present a host key that is not in `known_hosts` within the block."""
        new_key = make_key(self.folder / f"host_key_{secrets.token_hex(4)}")
        with self.restarted(HostKey=str(new_key)):
            yield

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Refuse new connections and cut the open ones within the block; processes keep running: an unreachable node."""
        self._stop()
        self.drop_connections()
        try:
            yield
        finally:
            self._start({})

    @contextlib.contextmanager
    def only(self, count: int) -> Iterator[None]:
        """Only the first `count` nodes listen within the block: all others refuse connections, and open ones are cut."""
        listeners = "\nListenAddress ".join(
            f"{address}:{self.port}" for address in ("127.0.0.1", *self.addresses(count))
        )
        with self.restarted(ListenAddress=listeners):
            self.drop_connections()
            yield

    def _start(self, options: Mapping[str, str]) -> None:
        config = write_server_config(self.folder / "sshd_config", self._settings(options))
        log = self.folder / "sshd.log"
        argv = [program("sshd"), "-D", "-e", "-f", str(config)]
        self._pid = self._keeper.start(argv, env={"PATH": os.environ.get("PATH", os.defpath)}, log=log)
        until(
            lambda: _sends_banner(self.port),
            awaited=lambda: f"sshd to answer; its log: {log.read_text(encoding='utf-8')}",
        )

    def _settings(self, options: Mapping[str, str]) -> dict[str, str]:
        settings = {
            # sshd cannot listen on a whole network; AllowUsers refuses clients from elsewhere
            "ListenAddress": f"0.0.0.0:{self.port}\nListenAddress [::1]:{self.port}",
            "AllowUsers": f"{self.user}@127.0.0.0/8 {self.user}@::1",
            **server_settings(host_key=self._host_key, authorized_keys=self._authorized_keys),
        }
        if not self._account.is_own:
            settings["SetEnv"] = f"HOME={self.home}"
            settings["ForceCommand"] = str(_write_login_script(self.folder / "enter"))
        return {**settings, **options}

    def _stop(self) -> None:
        kill(self._pid, signal.SIGTERM)
        until(lambda: self._pid not in self._keeper.processes(), awaited="sshd to end")

    def _write_known_hosts(self, host_key: Path) -> None:
        # every address is spelled out: paramiko knows no patterns in this file
        names = ",".join(f"[{address}]:{self.port}" for address in [*self.addresses(_KNOWN_ADDRESSES), "::1"])
        self.known_hosts.write_text(known_hosts_line(names, host_key), encoding="utf-8")


@contextlib.contextmanager
def open_farm(*, own_account: bool | None = None) -> Iterator[Farm]:
    """
    Start a farm; on exit, end its processes and remove its folder and account.

    `own_account` None makes a separate account if possible: if root runs the tests and the account can reach a Python and
    the installed packages. Otherwise the tests log in as the account that runs them.
    """
    for name in ("sshd", "ssh", "ssh-keygen"):
        program(name)
    folder = Path(tempfile.mkdtemp(prefix="orch-farm-"))
    folder.chmod(0o755)
    account = (
        accounts.own_account(folder)
        if accounts.is_root() and own_account is not False
        else accounts.current_account(folder)
    )
    keeper = Keeper(folder, user=account.user if account.is_own else "")
    try:
        python = node_python(folder / "python", user=account.user if account.is_own else None)
        if python is not None:
            yield Farm(folder, account, python=python, keeper=keeper)
            return
    finally:
        keeper.close()
    if not account.is_own or own_account:
        raise RuntimeError(f"no Python for {account.user} that reaches the installed packages")
    logging.getLogger(__name__).warning(
        "another account cannot reach this checkout: nodes run as the account that runs the tests"
    )
    with open_farm(own_account=False) as farm:
        yield farm


def _write_login_script(path: Path) -> Path:
    """Write the ForceCommand that enters the account's other home: sshd itself enters the home of the password file."""
    path.write_text(
        '#!/bin/sh\ncd "$HOME" && exec "$SHELL" -c "${SSH_ORIGINAL_COMMAND:-exec $SHELL -l}"\n', encoding="utf-8"
    )
    path.chmod(0o755)
    return path


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair, `path` and `path`.pub."""
    argv = [program("ssh-keygen"), "-q", "-t", kind, "-N", passphrase, "-C", "orch-test", "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def certify(public: Path, authority: Path, *options: str) -> Path:
    """Sign `x.pub` as `x-cert.pub` with the key of an authority; `options` are ssh-keygen's."""
    argv = [program("ssh-keygen"), "-q", "-s", str(authority), "-I", "orch-test", *options, str(public)]
    subprocess.run(argv, check=True)
    return public.with_name(f"{public.stem}-cert.pub")


def _sends_banner(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def is_connection(command: str) -> bool:
    """True if the command name is that of an sshd process, not of a user's command."""
    return command.startswith(("sshd", "sftp-server"))  # later OpenSSH also has sshd-session and sshd-auth
