"""How long a run outlives its first dead rank, with orch and with others, and how long it outlives a node that is cut off."""

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

from bench.place import BIN, Place, installed
from bench.processes import CommandFailed, Job, running
from bench.rounds import Contestant, Measure, Target, run_rounds
from orchestrator.node.processes import stat_of
from tests.grounds.cli import Orch
from tests.grounds.hosts import open_hosts
from tests.grounds.keeper import kill
from tests.grounds.marked import Process, processes_of, still_alive
from tests.grounds.ports import free_ports
from tests.grounds.slurm import Cluster, open_cluster
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

NODES, DEVICES, AT_LEAST = 4, 2, 20
RANKS = NODES * DEVICES
LIMIT_S = 30.0
GONE, SAID = "all is gone", "the record says FAILED"
RANK, VANISHED = "orch: kill -9 of a rank", "orch: the link of a node is cut"
TORCHRUN, TORCHRUN_NODES = "torchrun, one node (without ssh)", "four torchrun, c10d (without ssh)"
DEEPSPEED, SRUN = "deepspeed --launcher pdsh", "srun --kill-on-bad-exit=1"

NOTE = f"""\
{NODES} nodes with {DEVICES} ranks each, which sleep. One rank gets SIGKILL. *{GONE.capitalize()}*: no rank and, of orch, no agent is left on any
node. orch and DeepSpeed reach loopback addresses over ssh; srun starts the ranks on a Slurm of four slurmd on this machine;
torchrun starts all {RANKS} on one node, or {DEVICES} each on four, here. No peer has to be in a collective. A contestant
whose ranks still run {LIMIT_S:.0f} s later has failed."""
VANISHED_NOTE = f"""\
3 hosts in network namespaces, a sleeping rank on each. The link of one goes down without a word. *{GONE.capitalize()}*: nothing of the run
is left on the other hosts; the one that is cut off ends its rank after the isolation timeout."""


def measure(place: Place, *, repetitions: int) -> Measure:
    """A rank dies."""
    with open_farm() as farm, open_cluster() as cluster:
        others = _Others(place, farm, cluster)
        contestants = [Contestant(RANK, _with_orch(place, farm)), *others.contestants()]
        series = run_rounds(contestants, repetitions=max(AT_LEAST, repetitions))
    targets = (Target(RANK, GONE, 2.0), Target(RANK, GONE, 5.0, worst=True))
    return Measure("Death of a rank", NOTE, RANK, (GONE, SAID), targets, series)


def _with_orch(place: Place, farm: Farm) -> Callable[[], Mapping[str, float]]:
    farm.inventory(place.folder, nodes=NODES, devices=DEVICES)
    orch = Orch(place.folder)

    def run() -> Mapping[str, float]:
        run_id = _started(orch, ranks=RANKS)
        everything = processes_of(run_id)
        victim = next(pid for pid, _ in everything if _command(pid) == "sleep")
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        figures = _end(orch, run_id, everything, begun)
        until(lambda: not farm.processes(), deadline_s=30, what="the supervisor's connections to end")
        return figures

    return run


class _Others:
    """Launchers that start the same sleeping ranks; those of one run are found by how long they are to sleep."""

    def __init__(self, place: Place, farm: Farm, cluster: Cluster) -> None:
        self._place, self._farm, self._cluster = place, farm, cluster
        self._env = {**place.env, "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h", "SLURM_CONF": str(cluster.conf)}
        self._site = farm.folder / "site"  # DeepSpeed goes to the same folder on the nodes
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
                ranks = until(lambda: _all_ranks(sleep), deadline_s=60, what=f"the {RANKS} ranks of {name}")
                begun = time.monotonic()
                os.kill(min(ranks)[0], signal.SIGKILL)
                try:
                    return {GONE: _gone_after(ranks, begun)}
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
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}"]
        shape = [f"--nnodes={NODES}", f"--nproc-per-node={DEVICES}", "--no-python"]
        return [[str(BIN / "torchrun"), *shape, *meeting, *program] for _ in range(NODES)]

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
    """The sleeping ranks of one run once all of them are there, else nothing."""
    wanted = b"".join(word.encode() + b"\0" for word in sleep)
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                stat = stat_of(int(entry.name))
                found |= {(int(entry.name), stat[2])} if stat else set()
    return found if len(found) == RANKS else set()


def _gone_after(ranks: set[Process], begun: float) -> float:
    """
    Seconds until none of them is left.

    Raises:
        CommandFailed: some still run after LIMIT_S.
    """
    pause = threading.Event()
    while left := still_alive(ranks):
        if time.monotonic() - begun > LIMIT_S:
            raise CommandFailed(f"{len(left)} of the other {RANKS - 1} ranks still run {LIMIT_S:.0f} s later")
        pause.wait(0.005)
    return time.monotonic() - begun


def measure_vanished(place: Place, *, repetitions: int) -> Measure:
    """A node is cut off."""
    with open_hosts() as hosts:
        hosts.inventory(place.folder)
        orch = hosts.orch(place.folder)

        def run() -> Mapping[str, float]:
            run_id = _started(orch, ranks=3)
            cut_off = hosts[1].processes()
            elsewhere = {process for process in processes_of(run_id) if process[0] not in cut_off}
            begun = time.monotonic()
            hosts[1].link(up=False)
            figures = _end(orch, run_id, elsewhere, begun)
            orch.kill_supervisor(run_id)
            hosts.heal()
            return figures

        series = run_rounds([Contestant(VANISHED, run)], repetitions=repetitions)
    targets = (Target(VANISHED, GONE, 15.0, worst=True), Target(VANISHED, SAID, 15.0, worst=True))
    return Measure("A node that vanishes", VANISHED_NOTE, VANISHED, (GONE, SAID), targets, series)


def _started(orch: Orch, *, ranks: int) -> str:
    """A run of sleepers that is up on all nodes, and supervised."""
    run_id = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    until(lambda: orch.supervisor(run_id), what="the supervisor")
    until(lambda: _sleepers(run_id) == ranks, what="all ranks")
    until(lambda: _state(orch, run_id) == "RUNNING", what="the supervisor to hear of all")
    return run_id


def _end(orch: Orch, run_id: str, processes: set[Process], begun: float) -> Mapping[str, float]:
    """When the last of the processes was gone, and when the record was final."""
    until(lambda: not still_alive(processes), deadline_s=60, what="the run's processes to end")
    gone = time.monotonic() - begun
    until(lambda: _state(orch, run_id) == "FAILED", deadline_s=60, what="the verdict")
    return {GONE: gone, SAID: time.monotonic() - begun}


def _state(orch: Orch, run_id: str) -> str:
    return str(json.loads((orch.home / "runs" / run_id / "run.json").read_text("utf-8"))["state"])


def _sleepers(run_id: str) -> int:
    return sum(1 for pid, _ in processes_of(run_id) if _command(pid) == "sleep")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
