"""A training of the shared trainer on three hosts of network namespaces, started by orch or another launcher, and faults for it."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.node.run.run_folder import STANDBY_RECORD
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from tests.grounds.hosts import Host, Hosts
from tests.grounds.keeper import kill
from tests.grounds.marked import guards_of
from tests.grounds.metrics import read_metrics
from tests.grounds.ports import free_ports
from tests.paths import ROOT
from tests.until import until

SAVE_STEPS = 5
MODEL = ("model.layers=2", "model.width=64", "model.heads=2", "model.context=128", "micro_batch=8", "device=cpu", "report=",
         f"save_steps={SAVE_STEPS}", "save_total_limit=3", "hang_timeout=20", "ddp_timeout=60")  # fmt: skip
RANKS = 3
SHARE_NO_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""In torch 2.13 the agents otherwise keep the address of the first attempt's store, and wait for ever where rank 0 has moved to another node."""
START_S = 180.0


class HostTraining(abc.ABC):
    """
    A training of one rank on each of three hosts, which writes its checkpoints and metrics to `out`.

    All hosts see `out`, as on a shared file system; their other files are their own.
    """

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.hosts = hosts
        self.out = hosts.folder / name
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(mode=0o700)
        os.chown(self.out, hosts.uid, hosts.gid)

    def words(self, steps: int) -> list[str]:
        """The arguments of the trainer."""
        return [*MODEL, f"steps={steps}", f"out={self.out}"]

    def step(self) -> int:
        """The newest step that is recorded; 0 before the first one."""
        metrics = self.out / "metrics.jsonl"
        records = read_metrics(self.out) if metrics.exists() else []
        return int(records[-1]["step"]) if records else 0

    def wait_for_step(self, step: int, *, deadline_s: float = START_S) -> None:
        """Return when a later step than this one is recorded."""
        until(
            lambda: self.step() > step, deadline_s=deadline_s, awaited=lambda: f"step {step + 1} in {self.evidence()}"
        )

    @abc.abstractmethod
    def wait_until_prepared(self) -> None:
        """Return when the launcher has prepared a restart."""

    @abc.abstractmethod
    def rank(self, host: Host) -> int:
        """The pid, in the namespace of the tests, of the rank on a host."""

    @abc.abstractmethod
    def agent(self, host: Host) -> int:
        """The pid of the launcher's process that has started the rank."""

    def members(self) -> list[Host]:
        """The hosts of the ranks."""
        return self.hosts.hosts[:RANKS]

    def evidence(self) -> str:
        """The end of the launcher's output."""
        return ""


class OrchTraining(HostTraining):
    """Started by `orch ssh-launch`, with spares."""

    def __init__(
        self, hosts: Hosts, folder: Path, *, steps: int, spares: Sequence[str], isolation_timeout: str = "60s"
    ) -> None:
        super().__init__(hosts, f"out-{folder.name}")
        hosts.inventory(folder, spares=spares, env={"OMP_NUM_THREADS": 1})
        self.orch = hosts.orch(folder)
        options = ("--detach", "--max-retries", "1000", "--isolation-timeout", isolation_timeout)
        self.run = self.orch("ssh-launch", *options, *self.words(steps), timeout_s=START_S).stdout.strip()

    def record(self) -> RunRecord:
        """The record of the run."""
        return RunFolder(self.orch.home / "runs" / self.run).read()

    def wait_until_prepared(self) -> None:
        """Return when a process that has imported the trainer waits on each host, also on the spare ones."""
        until(
            lambda: all(map(self._is_prepared, self.hosts.hosts)),
            deadline_s=START_S,
            awaited=lambda: f"the waiting processes in {self.evidence()}",
        )

    def _is_prepared(self, host: Host) -> bool:
        pattern = f"*/runs/{self.run}/attempt-{self.record().attempt}/{host.name}/{STANDBY_RECORD}"
        records = [json.loads(path.read_text("utf-8")) for path in host.path(self.hosts.home).glob(pattern)]
        return any(record.get("ready") for record in records)

    def members(self) -> list[Host]:
        names = {node.name for node in RunFolder(self.orch.home / "runs" / self.run).read_plan().nodes}
        return [host for host in self.hosts.hosts if host.name in names]

    def rank(self, host: Host) -> int:
        return until(lambda: self._rank(host), deadline_s=START_S, awaited=f"the rank on {host.name}")

    def agent(self, host: Host) -> int:
        return self._agent_and_guard(host)[0]

    def guard(self, host: Host) -> int:
        """The pid of the process that ends the ranks if the agent dies."""
        return self._agent_and_guard(host)[1]

    def evidence(self) -> str:
        return f"{self.record().message}\n{self.orch.printed(self.run)[-3000:]}"

    def _agent_and_guard(self, host: Host) -> tuple[int, int]:
        def pids() -> tuple[int, int] | None:
            processes = host.all_processes()
            return next(((agent, guard) for guard, agent in guards_of(self.run).items() if agent in processes), None)

        return until(pids, deadline_s=START_S, awaited=f"the agent on {host.name}")

    def _rank(self, host: Host) -> int | None:
        """The pid of the rank in the newest attempt, from the agent's record, which has the pid inside the host."""
        pattern = f"*/runs/{self.run}/attempt-{self.record().attempt}/{host.name}/events.jsonl"
        for path in host.path(self.hosts.home).glob(pattern):
            events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            inside = {str(event["pid"]) for event in events if event["event"] == "rank-started"}
            return next((pid for pid in host.all_processes() if inside & _inner_pid(pid)), None)
        return None


LAUNCHERS = {
    "torchrun": ("torch.distributed.run",),
    "ft_launcher": ("nvidia_resiliency_ext.fault_tolerance.launcher", "--ignore-missing-fault-tol-cfg"),
}
"""The module of each launcher, and its own options; the latter is NVRx's, without the heartbeats that a program may send it."""


class ElasticTraining(HostTraining):
    """Started by `torchrun --max-restarts` on every host, with c10d, or by a launcher that is based on it."""

    def __init__(self, hosts: Hosts, launcher: str, *, steps: int) -> None:
        super().__init__(hosts, f"out-{launcher}")
        site = hosts.folder / "site"
        if not site.exists():
            shutil.copytree(ROOT / "trainer", site / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
        (port,) = free_ports(1)
        shape = [f"--nnodes={RANKS}", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d"]
        rendezvous = [f"--rdzv-endpoint={hosts[0].name}:{port}", "--rdzv-id=bench"]
        command_line = [str(hosts.python), "-m", *LAUNCHERS[launcher], *shape, *rendezvous]
        environ = (f"PYTHONPATH={site}", "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore", SHARE_NO_STORE)
        self._log = hosts.folder / f"{launcher}.log"
        with self._log.open("wb") as log:
            for host in hosts.hosts[:RANKS]:
                command = [*command_line, f"--local-addr={host.address}", "-m", "trainer", *self.words(steps)]
                argv = [*host.enter_as_account(), *environ, *command]
                subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )  # the hosts end it

    def wait_until_prepared(self) -> None:
        """Return: such a launcher prepares none."""

    def members(self) -> list[Host]:
        return [host for host in self.hosts.hosts if self._pids(host, is_rank=True)]

    def rank(self, host: Host) -> int:
        return until(lambda: next(iter(self._pids(host, is_rank=True)), 0), deadline_s=START_S, awaited="a rank")

    def agent(self, host: Host) -> int:
        return until(lambda: min(self._pids(host, is_rank=False), default=0), deadline_s=START_S, awaited="a launcher")

    def evidence(self) -> str:
        return self._log.read_text("utf-8", "replace")[-3000:]

    def _pids(self, host: Host, *, is_rank: bool) -> list[int]:
        found = []
        for pid in host.all_processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                is_python = b"\0trainer\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
                if is_python and is_rank == (b"\0TORCHELASTIC_RUN_ID=" in environ):
                    found.append(pid)
        return found


def _inner_pid(pid: int) -> set[str]:
    """The pid of a process in its own namespace; empty if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        return {line.split()[-1] for line in lines if line.startswith("NSpid:")}
    return set()


def kill_rank(training: HostTraining, host: Host) -> None:
    """SIGKILL of the rank."""
    kill(training.rank(host))


def stop_rank(training: HostTraining, host: Host) -> None:
    """SIGSTOP of the rank."""
    kill(training.rank(host), signal.SIGSTOP)


def kill_agent(training: HostTraining, host: Host) -> None:
    """SIGKILL of the agent, or of the other launcher."""
    kill(training.agent(host))


def kill_guard(training: HostTraining, host: Host) -> None:
    """SIGKILL of the agent's guard."""
    assert isinstance(training, OrchTraining)
    kill(training.guard(host))


def cut_off(_training: HostTraining, host: Host) -> None:
    """Cut the network link of the host: no peer gets a FIN or RST."""
    host.link(up=False)


def power_off(_training: HostTraining, host: Host) -> None:
    """End the host with all its processes, after its link was cut."""
    host.kill()


NODE_FAULTS = (cut_off, power_off)
Fault = Callable[[HostTraining, Host], None]
FAULTS: dict[str, Fault] = {
    "kill -9 of a rank": kill_rank,
    "SIGSTOP of a rank": stop_rank,
    "node cut off": cut_off,
    "node powered off": power_off,
    "agent killed": kill_agent,
    "guard killed": kill_guard,
}


@contextlib.contextmanager
def healed(hosts: Hosts) -> Iterator[Hosts]:
    """Undo all faults and end all processes after the block."""
    try:
        yield hosts
    finally:
        hosts.heal()


def stats(training: OrchTraining) -> dict[str, Any]:
    """The measurements of `orch stats --json`."""
    found: dict[str, Any] = json.loads(training.orch("stats", training.run, "--json", timeout_s=START_S).stdout)
    return found
