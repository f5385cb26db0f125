"""
Hosts that can be cut off: each has its own name, address, processes, files and sshd; a bridge joins them.

They are namespaces (see machines.py), so the kernel, its clock and all files but home, /etc/hosts and /dev/shm are shared.
They are not visible from outside and end with the tests, however those end. Only root can make them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.grounds import accounts, components
from tests.grounds.accounts import Account
from tests.grounds.cli import Orch
from tests.grounds.components import program
from tests.grounds.inventories import write_inventory
from tests.grounds.keeper import Keeper, kill, kill_each
from tests.grounds.machines import SUBNET, Controller, Machine, first_process
from tests.grounds.python import node_python
from tests.grounds.ssh_files import (
    authorize,
    client_settings,
    known_hosts_line,
    server_settings,
    write_client_config,
    write_server_config,
)
from tests.grounds.sshd import is_connection, make_key
from tests.until import until

PORT = 22
_BOOT = """
mount --bind "$FOLDER/etc-hosts" /etc/hosts
mount --bind "$FOLDER/$NAME/home" "$FOLDER/home"
mount --bind "$FOLDER/$NAME/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
hostname "$NAME"
exec "$SSHD" -D -e -f "$FOLDER/$NAME/sshd_config"
"""


class Host(Machine):
    """One of the hosts; its sshd is its pid 1."""

    def __init__(self, ground: Hosts, index: int) -> None:
        super().__init__(f"h{index}", number=1 + index, switch=ground.controller)
        self._ground = ground
        self._folder = ground.folder / self.name
        self._home = self._folder / "home"
        self._frozen: list[int] = []
        self._home.mkdir(parents=True, mode=0o700)
        self._folder.chmod(0o755)
        os.chown(self._home, ground.uid, ground.gid)
        self.host_key = make_key(self._folder / "host_key")
        settings = server_settings(host_key=self.host_key, authorized_keys=ground.authorized_keys)
        listen = {"ListenAddress": f"0.0.0.0:{PORT}", "AllowUsers": f"{ground.user}@{SUBNET}.0/24"}
        write_server_config(self._folder / "sshd_config", {**listen, **settings})

    def freeze(self) -> None:
        """Stop all processes. The kernel still runs: it accepts connections and acknowledges bytes."""

        def stop() -> bool:
            running = [pid for pid in self.all_processes() if _state(pid) not in "TZX"]
            for pid in running:
                kill(pid, signal.SIGSTOP)
            self._frozen += running
            return not running

        until(stop, awaited=f"all of {self.name} to stop")

    def thaw(self) -> None:
        """Continue the processes that `freeze` stopped."""
        for pid in set(self._frozen) & set(self.all_processes()):
            kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def kill(self) -> None:
        """Cut the power: only the host's files are left, and no peer gets a FIN or RST."""
        self.link(up=False)
        until(lambda: not kill_each(self.all_processes()), awaited=f"{self.name} to die")
        self.unplug()
        self.release()
        self._frozen.clear()

    def revive(self) -> None:
        """Boot after `kill`: new boot id, same address, keys and files; blocks between machines are undone."""
        self.start()
        self.wait_ready()

    def processes(self) -> dict[int, str]:
        """Pid in the tests' namespace -> command name of all processes that were started here, without sshd's."""
        machine_pids = {self.pid, self._starter}
        started = {
            pid: name
            for pid, name in self.all_processes().items()
            if pid not in machine_pids and not is_connection(name)
        }
        return {
            pid: name for pid, name in started.items() if name != "nsenter"
        }  # it runs outside and waits for its command

    def enter_as_account(self) -> tuple[str, ...]:
        """The command prefix that runs a command on this host as the account, in its home."""
        ground = self._ground
        identity = ("--setuid", str(ground.uid), "--setgid", str(ground.gid))
        environ = (f"HOME={ground.home}", f"USER={ground.user}", f"LOGNAME={ground.user}", f"PATH={os.defpath}")
        *enter, end = self.enter()
        return (*enter, *identity, end, "env", "-i", "-C", str(ground.home), *environ)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this host as the account, in its home."""
        command = [*self.enter_as_account(), *argv]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def path(self, inside: str | Path) -> Path:
        """The tests' path of a file in this host's home, given its path on the host; also while the host is down."""
        return self._home / Path(inside).relative_to(self._ground.home)

    def start(self) -> None:
        """Boot; `wait_ready` returns when logins are accepted."""
        ground = self._ground
        (self._folder / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        self._log.unlink(missing_ok=True)
        unshare = (program("unshare"), "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        names = {"NAME": self.name, "FOLDER": str(ground.folder), "SSHD": program("sshd")}
        environ = {"PATH": os.environ["PATH"], **names}
        self._hold(ground.keeper.start([*unshare, "sh", "-ec", _BOOT], env=environ, log=self._log))
        self.pid = first_process(self._starter)
        self.plug_in()
        self.add_neighbours(ground.other_machines(self))

    def wait_ready(self) -> None:
        """Return when sshd listens."""
        until(
            lambda: "Server listening" in self._log_text(), awaited=lambda: f"sshd of {self.name}: {self._log_text()}"
        )

    def heal(self) -> None:
        """Undo all faults, end all processes that were started and empty the home."""
        if not self.is_up:
            self._release_after_death()
            self.revive()
        self.thaw()
        self.link(up=True)
        self.add_neighbours(self._ground.other_machines(self))
        self.end_processes()
        for entry in self._home.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _release_after_death(self) -> None:
        """Release the namespaces after a test has killed the first process itself."""
        if self._network is not None:
            self.kill()

    @property
    def _log(self) -> Path:
        return self._folder / "sshd.log"

    def _log_text(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""


class Hosts:
    """The hosts, the controller and the keys and files for logins from it; made by `open_hosts`."""

    def __init__(self, folder: Path, account: Account, *, python: Path, keeper: Keeper, count: int) -> None:
        self.folder = folder
        self.user, self.home = account.user, account.home
        """The account of the logins; every host has its own home at that path."""
        self.uid, self.gid = account.home.stat().st_uid, account.home.stat().st_gid
        self.python = python
        """Interpreter of the nodes: it can import torch if the tests can, never the project."""
        self.keeper = keeper
        self.client_key = make_key(folder / "client_key")
        self.authorized_keys = authorize(self.client_key, folder / "authorized_keys")
        (folder / "etc-hosts").touch()
        self.controller = Controller(keeper, folder)
        self.hosts = [Host(self, index) for index in range(count)]
        names = "".join(f"{machine.address} {machine.name}\n" for machine in (self.controller, *self.hosts))
        (folder / "etc-hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="utf-8")
        lines = (known_hosts_line(f"{host.name},{host.address}", host.host_key) for host in self.hosts)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(lines), encoding="utf-8")
        self.ssh_config = self.write_ssh_config(folder / "ssh_config")
        self.controller.add_neighbours(self.hosts)
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.wait_ready()

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def write_ssh_config(self, path: Path, **options: str) -> Path:
        """Write a client configuration for names and addresses; `options` are ssh_config keywords that take precedence."""
        aliases = {host.name: host.address for host in self.hosts}
        settings = client_settings(user=self.user, port=PORT, key=self.client_key, known_hosts=self.known_hosts)
        return write_client_config(path, aliases, pattern=f"h? {SUBNET}.*", settings=settings, winning=options)

    def inventory(
        self,
        folder: Path,
        *,
        nodes: Sequence[str] | None = None,
        spares: Sequence[str] = (),
        devices: int = 1,
        **extra: object,
    ) -> Path:
        """Write `folder`/inventory.yaml for all hosts or the named ones; mappings of `extra` are merged into the defaults."""
        chosen = [host for host in self.hosts if nodes is None or host.name in nodes]
        base = {
            "name": "hosts",
            "accelerator": "cpu",
            "devices": devices,
            "transport": "ssh",
            "defaults": {"python": str(self.python), "workdir": str(self.home / secrets.token_hex(4))},
            "ssh": {"config": str(self.ssh_config)},
            "nodes": [
                {"name": host.name, "address": host.address, **({"tags": ["spare"]} if host.name in spares else {})}
                for host in chosen
            ],
        }
        return write_inventory(folder / "inventory.yaml", base, extra)

    def orch(self, folder: Path, *, on: Machine | None = None, **env: str) -> Orch:
        """Make an orch that runs in `folder` on the controller, or on the host `on`, with which it dies."""
        return Orch(folder, env, prefix=(*(on or self.controller).enter(), "env", "-C", str(folder)))

    def outputs(self, orch: Orch, run: str) -> list[str]:
        """The ranks' standard output on each node of the run, read from their files; for `until`, like `Orch.printed`."""
        hosts = {host.name: host for host in self.hosts}
        folders = [hosts[folder.name].path(folder) for folder in orch.node_folders(run)]
        return ["".join(path.read_text("utf-8") for path in folder.glob("rank-*.out")) for folder in folders]

    def ssh(self, host: Host, *command: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Log in from the controller."""
        argv = [*self.controller.enter(), "ssh", "-F", str(self.ssh_config), *options, host.name, *command]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def block(self, source: Machine, target: Machine) -> None:
        """Drop all packets from `source` to `target` silently; the other direction still works."""
        source.drop_packets_to(target)

    def unblock(self, source: Machine, target: Machine) -> None:
        """Undo `block`."""
        source.add_neighbours([target])

    def other_machines(self, machine: Machine) -> list[Machine]:
        """All machines but this one."""
        return [candidate for candidate in (self.controller, *self.hosts) if candidate is not machine]

    def heal(self) -> None:
        """Undo all faults, end all processes that were started and empty the homes."""
        self.controller.end_processes()
        self.controller.link(up=True)
        self.controller.add_neighbours(self.hosts)
        for host in self.hosts:
            host.heal()

    def release(self) -> None:
        """Release the namespaces."""
        for machine in (self.controller, *self.hosts):
            machine.release()


def require_namespaces() -> None:
    """Skip where namespaces cannot be made; fail in CI, except in a chroot, which no installed program can change."""
    argv = [program("unshare"), "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    if tried.returncode != 0:
        message = f"no namespaces for hosts on this machine: {tried.stderr.strip()}"
        if _is_chroot():
            pytest.skip(message)
        components.unavailable(message)


def _is_chroot() -> bool:
    here, first = Path("/").stat(), Path("/proc/1/root").stat()
    return (here.st_dev, here.st_ino) != (first.st_dev, first.st_ino)


@contextlib.contextmanager
def open_hosts(count: int = 3, *, own_account: bool = True) -> Iterator[Hosts]:
    """
    Start hosts h0, h1, … and a controller; on leaving, they and their processes, folder and account are gone.

    If a new account cannot reach the installed packages (a checkout below root's home), logins are root's.
    """
    if not accounts.is_root():
        components.unavailable("only root can make hosts")
    for name in components.PROGRAMS["hosts"]:
        program(name)
    require_namespaces()
    folder = Path(tempfile.mkdtemp(prefix="orch-hosts-"))
    folder.chmod(0o755)
    account = accounts.own_account(folder) if own_account else accounts.current_account(folder)
    keeper = Keeper(folder, user=account.user if own_account else "")
    try:
        python = node_python(folder / "python", user=account.user if own_account else None)
        if python is not None:
            hosts = Hosts(folder, account, python=python, keeper=keeper, count=count)
            try:
                yield hosts
            finally:
                hosts.release()
            return
    finally:
        keeper.close()
    assert own_account, "the tests run on a Python that they cannot run"
    with open_hosts(count, own_account=False) as hosts:
        yield hosts


def _state(pid: int) -> str:
    """State letter of a process; X if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
