"""The time from the death of a rank, or the loss of a node, to the end of the run: orch and other launchers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.processes import CommandFailed, Job, running
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import BIN, Workspace, installed
from orchestrator.node.system.processes import stat_of
from tests.grounds.cli import Orch
from tests.grounds.hosts import open_hosts
from tests.grounds.keeper import kill
from tests.grounds.marked import Process, processes_of, still_alive
from tests.grounds.ports import free_ports
from tests.grounds.slurm import Cluster, open_cluster
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

NODES, DEVICES, MIN_REPETITIONS = 4, 2, 20
RANKS = NODES * DEVICES
LIMIT_S = 30.0
ENDED, RECORDED = "all processes ended", "FAILED recorded"
RANK, VANISHED = "orch: kill -9 of a rank", "orch: the link of a node is cut"
TORCHRUN, TORCHRUN_NODES = "torchrun, one node (without ssh)", "four torchrun, c10d (without ssh)"
DEEPSPEED, SRUN = "deepspeed --launcher pdsh", "srun --kill-on-bad-exit=1"

DESCRIPTION = f"""\
{NODES} nodes with {DEVICES} sleeping ranks each. One rank gets SIGKILL. *{ENDED.capitalize()}*: no rank and no agent of orch is left on any
node. orch and DeepSpeed reach loopback addresses over ssh; srun starts the ranks on a Slurm of four slurmd on this machine;
torchrun starts all {RANKS} on one node, or {DEVICES} each on four, on this machine. The ranks are in no collective. A contestant
whose ranks still run {LIMIT_S:.0f} s later has failed. At least {MIN_REPETITIONS} runs."""
VANISHED_DESCRIPTION = f"""\
3 hosts in network namespaces, a sleeping rank on each. The network link of one host is cut silently. *{ENDED.capitalize()}*: no process of the
run is left on the other hosts; the isolated host ends its rank after the isolation timeout."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """Kill one rank."""
    with open_farm() as farm, open_cluster() as cluster:
        launchers = _OtherLaunchers(workspace, farm, cluster)
        contestants = [Contestant(RANK, _with_orch(workspace, farm)), *launchers.contestants()]
        series = run_rounds(contestants, repetitions=max(MIN_REPETITIONS, repetitions))
    targets = (Target(RANK, ENDED, 2.0), Target(RANK, ENDED, 5.0, worst=True))
    return Measure("Death of a rank", DESCRIPTION, RANK, (ENDED, RECORDED), targets, series)


def _with_orch(workspace: Workspace, farm: Farm) -> Callable[[], Mapping[str, float]]:
    farm.inventory(workspace.folder, nodes=NODES, devices=DEVICES)
    orch = Orch(workspace.folder)

    def run() -> Mapping[str, float]:
        run_id = _started(orch, ranks=RANKS)
        processes = processes_of(run_id)
        victim = next(pid for pid, _ in processes if _command(pid) == "sleep")
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        figures = _end(orch, run_id, processes, begun)
        until(lambda: not farm.processes(), deadline_s=30, awaited="the supervisor's connections to end")
        return figures

    return run


class _OtherLaunchers:
    """The other launchers, with the same sleeping ranks; the argument of `sleep` identifies the ranks of one run."""

    def __init__(self, workspace: Workspace, farm: Farm, cluster: Cluster) -> None:
        self._workspace, self._farm, self._cluster = workspace, farm, cluster
        self._env = {**workspace.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h", "SLURM_CONF": str(cluster.conf)}
        self._site = farm.folder / "site"  # DeepSpeed changes to the same folder on the nodes
        self._site.mkdir(mode=0o755)
        self._site.chmod(0o755)
        self._hosts = farm.addresses(NODES)
        (farm.folder / "hostfile").write_text("".join(f"{host} slots={DEVICES}\n" for host in self._hosts), "utf-8")
        self._numbers = itertools.count(1)

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        commands = {
            TORCHRUN: self._torchrun,
            TORCHRUN_NODES: self._torchrun_nodes,
            DEEPSPEED: self._deepspeed,
            SRUN: self._srun,
        }
        return [self._contestant(name, command) for name, command in commands.items()]

    def _contestant(self, name: str, commands: Callable[[list[str]], list[list[str]]]) -> Contestant:
        def run() -> Mapping[str, float]:
            sleep = [installed("sleep"), f"1000.{next(self._numbers):06d}"]
            job = Job(commands(sleep), cwd=self._site, env=self._env)
            with running(job):
                ranks = until(lambda: _all_ranks(sleep), deadline_s=60, awaited=f"the {RANKS} ranks of {name}")
                begun = time.monotonic()
                os.kill(min(ranks)[0], signal.SIGKILL)
                try:
                    return {ENDED: _ended_after(ranks, begun)}
                finally:
                    for pid, _ in still_alive(ranks):
                        kill(pid)
                    self._farm.end_processes()
                    self._cluster.end_jobs()

        return Contestant(name, run)

    def _torchrun(self, program: list[str]) -> list[list[str]]:
        return [[str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={RANKS}", "--no-python", *program]]

    def _torchrun_nodes(self, program: list[str]) -> list[list[str]]:
        (port,) = free_ports(1)
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}"]
        shape = [f"--nnodes={NODES}", f"--nproc-per-node={DEVICES}", "--no-python"]
        return [[str(BIN / "torchrun"), *shape, *rendezvous, *program] for _ in range(NODES)]

    def _deepspeed(self, program: list[str]) -> list[list[str]]:
        installed("pdsh")
        (port,) = free_ports(1)
        master = ["--master_addr", self._hosts[0], "--master_port", str(port)]
        options = ["--hostfile", str(self._farm.folder / "hostfile"), "--launcher", "pdsh", "--no_ssh_check", *master]
        return [[str(BIN / "deepspeed"), *options, "--no_python", "--no_local_rank", *program]]

    def _srun(self, program: list[str]) -> list[list[str]]:
        shape = [f"--nodes={NODES}", f"--ntasks={RANKS}", "--overcommit", "--kill-on-bad-exit=1"]
        return [[installed("srun"), *shape, *program]]


def _all_ranks(sleep: Sequence[str]) -> set[Process]:
    """The sleeping ranks of one run if all of them have started, else an empty set."""
    command_line = b"".join(word.encode() + b"\0" for word in sleep)
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == command_line:
                stat = stat_of(int(entry.name))
                found |= {(int(entry.name), stat[2])} if stat else set()
    return found if len(found) == RANKS else set()


def _ended_after(ranks: set[Process], begun: float) -> float:
    """
    Seconds until none of the ranks is left.

    Raises:
        CommandFailed: some still run after LIMIT_S.
    """
    pause = threading.Event()
    while left := still_alive(ranks):
        if time.monotonic() - begun > LIMIT_S:
            raise CommandFailed(f"{len(left)} of the other {RANKS - 1} ranks still run {LIMIT_S:.0f} s later")
        pause.wait(0.005)
    return time.monotonic() - begun


def measure_vanished(workspace: Workspace, *, repetitions: int) -> Measure:
    """Cut the network link of one node."""
    with open_hosts() as hosts:
        hosts.inventory(workspace.folder)
        orch = hosts.orch(workspace.folder)

        def run() -> Mapping[str, float]:
            run_id = _started(orch, ranks=3)
            isolated = hosts[1].processes()
            other_processes = {process for process in processes_of(run_id) if process[0] not in isolated}
            begun = time.monotonic()
            hosts[1].link(up=False)
            figures = _end(orch, run_id, other_processes, begun)
            orch.kill_supervisor(run_id)
            hosts.heal()
            return figures

        series = run_rounds([Contestant(VANISHED, run)], repetitions=repetitions)
    targets = (Target(VANISHED, ENDED, 15.0, worst=True), Target(VANISHED, RECORDED, 15.0, worst=True))
    return Measure("Loss of a node", VANISHED_DESCRIPTION, VANISHED, (ENDED, RECORDED), targets, series)


def _started(orch: Orch, *, ranks: int) -> str:
    """Start a run of sleeping ranks; return its id when all ranks run and the supervisor knows it."""
    run_id = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    until(lambda: orch.supervisor(run_id), awaited="the supervisor")
    until(lambda: _sleepers(run_id) == ranks, awaited="all ranks")
    until(lambda: _state(orch, run_id) == "RUNNING", awaited="the supervisor to record RUNNING")
    return run_id


def _end(orch: Orch, run_id: str, processes: set[Process], begun: float) -> Mapping[str, float]:
    """Wait for the end of the processes and for the final record; return the seconds to each."""
    until(lambda: not still_alive(processes), deadline_s=60, awaited="the run's processes to end")
    ended_s = time.monotonic() - begun
    until(lambda: _state(orch, run_id) == "FAILED", deadline_s=60, awaited="the verdict")
    return {ENDED: ended_s, RECORDED: time.monotonic() - begun}


def _state(orch: Orch, run_id: str) -> str:
    return str(json.loads((orch.home / "runs" / run_id / "run.json").read_text("utf-8"))["state"])


def _sleepers(run_id: str) -> int:
    return sum(1 for pid, _ in processes_of(run_id) if _command(pid) == "sleep")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
