"""A Slurm cluster on the hosts of hosts.py: h0 is the login node and runs slurmctld, all others are compute nodes."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from tests.grounds.components import program
from tests.grounds.hosts import Host, Hosts
from tests.grounds.inventories import write_inventory
from tests.grounds.slurm import COMMON_CONF
from tests.until import until

_SOCKET = "/dev/shm/munge.socket"
_CONF = """\
ClusterName=orchhosts
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
AccountingStorageType=accounting_storage/none
{common}{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=01:00:00 State=UP
SlurmdTimeout=6
"""


class SlurmHosts:
    """The cluster, for one test: its daemons end when the hosts are healed."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.login, *self.nodes = hosts.hosts
        self._folder = hosts.folder / f"slurm-{secrets.token_hex(4)}"
        (self._folder / "state").mkdir(parents=True)
        self.conf = self._folder / "slurm.conf"
        self._start()

    def inventory(self, folder: Path, *, shared: bool = True, config: Path | None = None) -> Path:
        """Write `folder`/inventory.yaml; the workdir is shared by all hosts, or below each host's own home."""
        work = Path("~/work")
        if shared:
            work = self.hosts.folder / f"shared-{secrets.token_hex(4)}"
            work.mkdir(mode=0o700)
            os.chown(work, self.hosts.uid, self.hosts.gid)
        base = {
            "name": "hosts",
            "accelerator": "cpu",
            "devices": 1,
            "defaults": {"python": str(self.hosts.python), "workdir": str(work)},
            "ssh": {"config": str(config or self.hosts.ssh_config)},
            "slurm": {"partition": "debug", "time": "00:10:00", "login": self.login.name},
            "nodes": [{"name": host.name, "address": host.address} for host in self.nodes],
        }
        return write_inventory(folder / "inventory.yaml", base, {})

    def jobs(self) -> list[str]:
        """The ids of all jobs that have not ended."""
        return self._do("squeue", "--noheader", "--format=%i").split()

    def is_idle(self, host: Host) -> bool:
        """Return whether this host can start a job and has none."""
        return f"{host.name} idle" in self._states()

    def start_now(self, job: str) -> None:
        """Make a job that is, or soon will be, requeued start in two seconds, not when its old credentials have expired."""
        wanted = "PENDING BeginTime"
        show = ("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
        until(lambda: self._do(*show).strip() == wanted, awaited=lambda: f"a requeue: {self._do(*show)}")
        self._do("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def _start(self) -> None:
        names = ",".join(host.name for host in self.nodes)
        nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=4 State=UNKNOWN" for host in self.nodes)
        login = {"login": self.login.name, "address": self.login.address}
        text = _CONF.format(
            **login, socket=_SOCKET, common=COMMON_CONF.format(folder=self._folder), nodes=nodes, names=names
        )
        self.conf.write_text(text, "utf-8")
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", "utf-8")
        profile = self.login.path(self.hosts.home / ".bash_profile")
        profile.write_text(f"export SLURM_CONF={self.conf}\n", "utf-8")
        profile.chmod(0o644)
        (self._folder / "key").write_bytes(secrets.token_bytes(128))
        (self._folder / "key").chmod(0o600)
        for host in self.hosts.hosts:
            files = [f"--{name}-file=/dev/shm/munge.{name}" for name in ("pid", "log", "seed")]
            key = f"--key-file={self._folder / 'key'}"
            self._daemon(host, "munged", "--foreground", "--force", f"--socket={_SOCKET}", key, *files)
        self._daemon(self.login, "slurmctld", "-D")
        for host in self.nodes:
            self._daemon(host, "slurmd", "-D")
        idle = [f"{host.name} idle" for host in self.nodes]
        until(lambda: self._states() == idle, awaited=self._daemon_logs)

    def _daemon(self, host: Host, name: str, *arguments: str) -> None:
        env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.conf)}
        argv = [*host.enter(), program(name), *arguments]
        self.hosts.keeper.start(argv, env=env, log=self._folder / f"{host.name}-{name}.out")

    def _states(self) -> list[str]:
        return self._do("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()

    def _do(self, *command: str) -> str:
        argv = [*self.login.enter(), "env", f"SLURM_CONF={self.conf}", *command]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60).stdout

    def _daemon_logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text('utf-8')[-1500:]}" for path in self._folder.glob("*.out"))
