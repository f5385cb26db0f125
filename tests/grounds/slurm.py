"""A Slurm cluster of four nodes on this machine: slurmctld, four slurmds and a private munged in one temporary folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.grounds.accounting import start_accounting
from tests.grounds.cli import Orch
from tests.grounds.components import PROGRAMS, program
from tests.grounds.inventories import write_inventory
from tests.grounds.keeper import Keeper, kill, kill_each
from tests.grounds.ports import free_ports
from tests.grounds.python import node_python
from tests.until import until

NODES = ("n0", "n1", "n2", "n3")
_DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd", "slurmdbd", "mariadbd")
_START_S = 30.0

# KillWait and the scheduler's intervals are short, so that tests wait little; more CPUs are declared than the machine has.
COMMON_CONF = """\
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=5
"""
# Enough CPUs for eight tasks on a two-core machine. A job in `urgent` preempts those in `debug`.
# No accounting unless requested: the case without sacct is the harder one.
_CONF = """\
ClusterName=orchtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
{common}NodeName=n[0-3] NodeHostname={host} NodeAddr=127.0.0.[10-13] Port=[{node_ports}] CPUs=4 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=debug Nodes=n[0-3] Default=YES MaxTime=01:00:00 PriorityTier=1 GraceTime=30 State=UP
PartitionName=urgent Nodes=n[0-3] MaxTime=01:00:00 PriorityTier=2 State=UP
"""

# slurmd loads a cgroup plugin although nothing here uses one; v1's loads even if nothing is mounted or writable.
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"


class Cluster:
    """A running cluster; made by `open_cluster`."""

    nodes = NODES

    def __init__(self, folder: Path, *, python: Path, keeper: Keeper, accounted: bool, plugin: str = "") -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.python = python
        """Interpreter of the nodes: it can import torch if the tests can, never the project."""
        # tests that run inside a job must not look like a part of that job
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.env = {**outside, "SLURM_CONF": str(self.conf)}
        self._keeper = keeper
        (folder / "plugstack.conf").write_text(plugin, encoding="utf-8")
        self._start(accounted=accounted)

    def inventory(self, folder: Path, *, devices: int = 1, **extra: object) -> Path:
        """Write `folder`/inventory.yaml for all nodes; `extra` are further top-level keys, mappings are merged."""
        base = {
            "name": "cluster",
            "accelerator": "cpu",
            "devices": devices,
            "defaults": {"python": str(self.python), "workdir": str(self.folder / "work" / secrets.token_hex(4))},
            "slurm": {"partition": "debug", "time": "00:10:00"},
            "nodes": [{"name": "n[0-3]", "address": "127.0.0.[10-13]"}],
        }
        return write_inventory(folder / "inventory.yaml", base, extra)

    def jobs(self) -> dict[str, str]:
        """Job id -> state of every job that has not ended."""
        lines = self._run("squeue", "--noheader", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_for(self, orch: Orch, run: str, state: str, *, deadline_s: float = 90.0) -> dict[str, Any]:
        """
        Wait for a state of the run and return its status; a run that ends in another state fails the test.

        squeue costs a tenth of `orch status`, which is called only if the job's state makes the run's state likely.
        """
        active = {"PENDING", "RUNNING"}

        def status() -> dict[str, Any] | None:
            job = self.jobs().get(orch.slurm_job(run))
            if job != state and (job in active or state in active):
                return None
            found = orch.status(run)
            return found if found["state"] in {state, "DONE", "FAILED", "STOPPED", "LOST"} else None

        def evidence() -> str:
            return f"{run} to be {state}: {orch.status(run)['message']}\n{orch.printed(run)[-6000:]}"

        found = until(status, awaited=evidence, deadline_s=deadline_s)
        assert found["state"] == state, evidence()
        return found

    def signal(self, job: str, name: str) -> None:
        """Signal all steps of a job, as Slurm does with USR2 before a time limit."""
        self._run("scancel", f"--signal={name}", job)

    def preempt(self, *nodes: str) -> None:
        """Preempt these nodes with a job of the urgent partition, which ends at once."""
        nodelist = f"--nodelist={','.join(nodes)}"
        self._run("sbatch", "--partition=urgent", "--exclusive", nodelist, "--output=/dev/null", "--wrap", "true")

    def processes(self) -> dict[int, str]:
        """Pid -> command name of all processes of jobs and of their slurmstepds, without the daemons."""
        return {pid: command for pid, command in self._keeper.processes().items() if command not in _DAEMONS}

    def daemons(self) -> dict[int, str]:
        """Pid -> command name of the daemons."""
        return {pid: command for pid, command in self._keeper.processes().items() if command in _DAEMONS}

    def end_jobs(self) -> None:
        """Cancel every job and wait until all their processes have ended; a step that resists is killed."""
        jobs = self.jobs()
        if jobs:
            # refused for a job that is just ending, which does no harm
            self._run("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self._run("scancel", *jobs, check=False)
        until(lambda: not self.jobs(), awaited="cancelled jobs to leave the queue")
        until(lambda: not kill_each(self.processes()), awaited="processes of jobs to end")

    def requeue_waiting(self, job: str) -> None:
        """Requeue a job as an admin does: it waits until its old credentials have expired."""
        self._run("scontrol", "requeue", job)
        until(lambda: self.jobs().get(job) == "PENDING", awaited="the job to be requeued")

    def requeue(self, job: str) -> None:
        """Requeue a job and make it start soon."""
        self._run("scontrol", "requeue", job)
        self.start_soon(job)

    def start_soon(self, job: str) -> None:
        """Make a job that is, or soon will be, requeued start without waiting for its old credentials to expire."""
        state_and_reason = ("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
        waiting = "PENDING BeginTime"
        until(
            lambda: self._run(*state_and_reason).strip() == waiting,
            awaited=lambda: f"the job to be requeued, and not {self._run(*state_and_reason).strip()}",
        )
        self.start_now(job)

    def start_now(self, job: str) -> None:
        """
        Make a requeued job start in two seconds, not only when all its old credentials have expired.

        Not at once: slurmd refuses credentials of the second in which it revoked one, and the job would fail.
        """
        self._run("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def short_timeout_env(self) -> dict[str, str]:
        """The environment for commands with a short timeout: by default Slurm's take 20 s to notice a missing slurmctld."""
        conf = self.folder / "short-timeout.conf"
        conf.write_text(self.conf.read_text("utf-8") + "MessageTimeout=2\n", "utf-8")
        return {**self.env, "SLURM_CONF": str(conf)}

    def stop_controller(self, *, hang: bool = False) -> None:
        """End slurmctld, or make it hang: it accepts connections and answers nothing."""
        for pid in self._pids("slurmctld", "slurmscriptd"):
            kill(pid, signal.SIGSTOP if hang else signal.SIGTERM)
        if not hang:
            until(lambda: not self._pids("slurmctld"), awaited="slurmctld to end")

    def start_controller(self) -> None:
        """Continue or restart slurmctld, with its saved state."""
        hanging = self._pids("slurmctld", "slurmscriptd")
        for pid in hanging:
            kill(pid, signal.SIGCONT)
        if not hanging:
            self._daemon("slurmctld", "-D")
        until(self._states, awaited="slurmctld to answer")

    def lose_node(self, node: str, *, with_steps: bool = False) -> None:
        """
        Kill a node's slurmd and all processes of jobs there, and set the node DOWN at once.

        Args:
            with_steps: kill each slurmstepd, too, as when the machine is lost; otherwise it reports that the tasks have ended.
        """
        self.kill_slurmd(node)
        lost, victims, parents = f"SLURMD_NODENAME={node}".encode(), [], set()
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if lost in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    victims.append(pid)
                    parents.add(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))
        # by its children, as a slurmstepd has overwritten its environment
        is_step = {pid: Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd") for pid in parents}
        steps = [pid for pid in parents if with_steps and is_step[pid]]
        for pid in (*steps, *victims):  # stopped first, so that none sees another one end
            kill(pid, signal.SIGSTOP)
        # children first: the kernel continues stopped ones of an ended parent
        for pid in (*sorted(victims, reverse=True), *steps):
            kill(pid, signal.SIGKILL)
        self._run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def kill_slurmd(self, node: str) -> None:
        """Kill the slurmd of a node; processes of jobs there keep running."""
        pid = self._slurmd(node)
        assert pid is not None, f"no slurmd on {node}"
        kill(pid)
        until(lambda: self._slurmd(node) is None, awaited="slurmd to end")

    def repair(self) -> None:
        """Undo the faults: every daemon runs, every node accepts jobs."""
        if not self._pids("slurmctld") or not self._states():
            self.start_controller()
        for node in NODES:
            if self._slurmd(node) is None:
                self._daemon("slurmd", "-D", "-N", node, log=f"slurmd-{node}")
        names = ",".join(NODES)
        self._run("scontrol", "update", f"NodeName={names}", "State=RESUME", check=False)
        until(
            lambda: set(self._states().split()[1::2]) <= {"idle", "mixed", "allocated"},
            awaited=self._states,
        )

    def _pids(self, *commands: str) -> list[int]:
        return [pid for pid, command in self.daemons().items() if command in commands]

    def _slurmd(self, node: str) -> int | None:
        words = f"-N\0{node}\0".encode()
        for pid in self._pids("slurmd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def _start(self, *, accounted: bool) -> None:
        host = socket.gethostname().partition(".")[0]
        controller, *node_ports = free_ports(1 + len(NODES))
        text = _CONF.format(
            common=COMMON_CONF.format(folder=self.folder),
            host=host,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            folder=self.folder,
            controller_port=controller,
            node_ports=",".join(map(str, node_ports)),
        )
        self.conf.write_text(text, encoding="utf-8")
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF, encoding="utf-8")
        (self.folder / "state").mkdir()
        self._start_munged()
        if accounted:
            accounting = start_accounting(self.folder, self.env, self._keeper)
            self.conf.write_text(text + accounting, encoding="utf-8")
            self._run("sacctmgr", "--immediate", "add", "cluster", "orchtest")
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node, log=f"slurmd-{node}")
        idle = " ".join(f"{node} idle" for node in NODES)
        until(lambda: self._states() == idle, deadline_s=_START_S, awaited=lambda: f"idle nodes\n{self._daemon_logs()}")

    def _daemon_logs(self) -> str:
        """The end of every daemon's output, for the message: the folder is removed when the test fails."""
        outputs = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in self.folder.glob("*.out")}
        return "\n".join(f"== {name}\n{text[-1500:]}" for name, text in sorted(outputs.items()))

    def _start_munged(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o600)
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files)
        until((munge / "socket").exists, awaited="munged's socket")

    def _daemon(self, name: str, *arguments: str, log: str = "") -> None:
        self._keeper.start([program(name), *arguments], env=self.env, log=self.folder / f"{log or name}.out")

    def _states(self) -> str:
        """`n0 idle n1 idle …`; empty if the controller does not answer."""
        return " ".join(
            self._run("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N %T", check=False).split()
        )

    def _run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(
            argv, env=self.env, check=check, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return done.stdout


@contextlib.contextmanager
def open_cluster(*, accounted: bool = False, plugin: str = "") -> Iterator[Cluster]:
    """
    Start a cluster; on exit, end its processes and remove its folder.

    Args:
        accounted: with slurmdbd and its database.
        plugin: a line of plugstack.conf.
    """
    for name in PROGRAMS["accounting" if accounted else "slurm"]:
        program(name)
    folder = Path(tempfile.mkdtemp(prefix="orch-slurm-"))
    folder.chmod(0o755)
    keeper = Keeper(folder)
    try:
        python = node_python(folder / "python")
        assert python is not None, "the tests run on a Python that they cannot run"
        yield Cluster(folder, python=python, keeper=keeper, accounted=accounted, plugin=plugin)
    finally:
        keeper.close()
