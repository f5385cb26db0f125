"""
One real sshd that answers on every address of 127.0.0.0/8 and on ::1, so that each address is a node.

Run by root, the nodes' side is an unprivileged account made for the occasion; run by anybody else, it is that same
account with a home of its own. Keys, homes and logs lie in one temporary folder; nobody's ~/.ssh is read or written.
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
import tempfile
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


class Farm:
    """A running sshd and what is needed to reach it; made by `open_farm`."""

    def __init__(self, folder: Path, account: Account, *, python: Path, keeper: Keeper) -> None:
        self.folder = folder
        self.user = account.user
        self.home = account.home
        self.is_own_account = account.is_own
        """The nodes run as an account of their own; False: as whoever runs the tests."""
        self.python = python
        """Interpreter for the nodes: sees torch when the tests do, never the project."""
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
        """The first addresses; `n0` to `n7` are aliases of the first eight, and 1,024 are in `known_hosts`."""
        return [str(_FIRST_ADDRESS + index) for index in range(count)]

    def write_ssh_config(self, path: Path, *, known_hosts: Path | None = None, **options: str) -> Path:
        """Write a client configuration for aliases and addresses; `options` are ssh_config keywords that win."""
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
            nodes: how many, or their names out of n0 … n7.
            aliases: leave the addresses out, so that the names reach the nodes through ssh_config alone.
            shared: one work folder for all nodes, as on a shared file system; otherwise every node has its own.
            extra: further top-level keys; mappings are merged into what is written anyway.
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
        """Pid -> command name of all that runs on the nodes' side, detached or not; sshd's own processes are left out."""
        return {pid: command for pid, command in self._keeper.processes().items() if not is_connection(command)}

    def end_processes(self) -> None:
        """Kill all that runs on the nodes' side."""
        until(lambda: not kill_each(self.processes()), awaited="the farm's processes to end")

    def drop_connections(self) -> None:
        """Cut every open connection from the nodes' side; what they started goes on, new connections are welcome."""
        until(lambda: not kill_each(self.connections()), awaited="connections to end")

    def connections(self) -> dict[int, str]:
        """Pid -> command name of what sshd has started for connections that are open."""
        return {pid: name for pid, name in self._keeper.processes().items() if is_connection(name) and pid != self._pid}

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
        """Give the nodes' own account a password within the block; sshd takes it where `restarted` says so."""
        word = secrets.token_urlsafe(12)
        accounts.set_password(self._account, word)
        try:
            yield word
        finally:
            accounts.set_password(self._account, None)

    @contextlib.contextmanager
    def counted(self, **options: str) -> Iterator[Callable[[], int]]:
        """Run with other sshd_config keywords within the block, and tell how many connections there were in it."""
        log = self.folder / "sshd.log"
        before = log.stat().st_size
        with self.restarted(LogLevel="VERBOSE", **options):
            greetings = log.read_bytes()[before:].count(b"Connection from")  # until it answered
            yield lambda: log.read_bytes()[before:].count(b"Connection from") - greetings

    @contextlib.contextmanager
    def restart_with_new_host_key(self) -> Iterator[None]:
        """Present another host key than `known_hosts` tells within the block."""
        other = make_key(self.folder / f"host_key_{secrets.token_hex(4)}")
        with self.restarted(HostKey=str(other)):
            yield

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Refuse new connections and cut the open ones within the block, while processes go on: an unreachable node."""
        self._stop()
        self.drop_connections()
        try:
            yield
        finally:
            self._start({})

    @contextlib.contextmanager
    def only(self, count: int) -> Iterator[None]:
        """The first nodes stay within the block: all others refuse connections, and the open ones are cut."""
        places = "\nListenAddress ".join(f"{address}:{self.port}" for address in ("127.0.0.1", *self.addresses(count)))
        with self.restarted(ListenAddress=places):
            self.drop_connections()
            yield

    def _start(self, options: Mapping[str, str]) -> None:
        config = write_server_config(self.folder / "sshd_config", self._settings(options))
        log = self.folder / "sshd.log"
        argv = [program("sshd"), "-D", "-e", "-f", str(config)]
        self._pid = self._keeper.start(argv, env={"PATH": os.environ.get("PATH", os.defpath)}, log=log)
        until(lambda: _greets(self.port), awaited=lambda: f"sshd to answer; its log: {log.read_text(encoding='utf-8')}")

    def _settings(self, options: Mapping[str, str]) -> dict[str, str]:
        settings = {
            # loopback as a whole cannot be listened on; AllowUsers keeps everybody else out
            "ListenAddress": f"0.0.0.0:{self.port}\nListenAddress [::1]:{self.port}",
            "AllowUsers": f"{self.user}@127.0.0.0/8 {self.user}@::1",
            **server_settings(host_key=self._host_key, authorized_keys=self._authorized_keys),
        }
        if not self._account.is_own:
            settings["SetEnv"] = f"HOME={self.home}"
            settings["ForceCommand"] = str(_write_entrance(self.folder / "enter"))
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
    Start a farm; on leaving, its processes, folder and account are gone.

    `own_account` None takes an own account when that is possible: for root, when the account can reach a Python and the
    installed packages. Otherwise the farm logs in as whoever runs the tests.
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
        "another account cannot reach this checkout: nodes run as whoever runs the tests"
    )
    with open_farm(own_account=False) as farm:
        yield farm


def _write_entrance(path: Path) -> Path:
    """What a login as an account with another home runs: sshd itself enters the home of the password file."""
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


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def is_connection(command: str) -> bool:
    """Tell a process of sshd's, by its command name, from what it was asked to run."""
    return command.startswith(("sshd", "sftp-server"))  # later OpenSSH also has sshd-session and sshd-auth
