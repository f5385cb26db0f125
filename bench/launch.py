"""The time from a launch on two hosts to the first line of the program: orch and other launchers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import BIN, UNBUFFERED, Workspace, installed
from tests.grounds.ports import free_ports
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

HOSTS = 2
HELLO = "hello from a rank"
FIRST, ALL, END = "first line", "line of each host", "to the end"
_PROGRAMS = Path(__file__).parent / "programs"

ORCH_ECHO = "orch ssh-launch -- echo"
ORCH_SCRIPT = "orch ssh-launch -- hello.py"
ORCH_COLD = "orch ssh-launch -- echo, on never used hosts"
CLUSH = "clush echo"
PDSH = "pdsh echo"
DEEPSPEED = "deepspeed --launcher pdsh hello.py"
TORCHRUNX = "torchrunx (without ssh)"
TORCHRUN = "two torchrun by hand (without ssh)"

DESCRIPTION = f"""\
{HOSTS} hosts, which are loopback addresses of one sshd; the program prints one line on each. *{FIRST.capitalize()}*: until
the first of them arrives on the command's standard output. The other launchers run in their quickest form. DeepSpeed gets
`--no_ssh_check` and `--master_addr`, which save it two connections, and reaches the hosts through `PDSH_SSH_ARGS`.
torchrunx treats loopback addresses as this machine: a shell starts its agents, not ssh, and it makes no process
group. The two `torchrun` (static rendezvous) are started at the same moment, on this machine. clush and pdsh run a command
and know nothing of ranks; clush writes unbuffered. On never used hosts, orch also pushes its bundle; on the others it is there from the warm-up."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    with open_farm() as farm:
        setup = _Setup(workspace, farm)
        series = run_rounds(setup.contestants(), repetitions=repetitions)
    targets = (
        *(Target(ORCH_SCRIPT, FIRST, 1.0, baseline=baseline) for baseline in (DEEPSPEED, TORCHRUNX, TORCHRUN)),
        Target(ORCH_ECHO, FIRST, 1.2, baseline=CLUSH),
        Target(ORCH_ECHO, FIRST, 2.0, baseline=PDSH),
    )
    return Measure("Launch", DESCRIPTION, CLUSH, (FIRST, ALL, END), targets, series)


class _Setup:
    """The sshd farm, and the commands, environment and files of the contestants."""

    def __init__(self, workspace: Workspace, farm: Farm) -> None:
        self._farm = farm
        self._hosts = farm.addresses(HOSTS)
        self._env = {
            **workspace.env,
            "PDSH_SSH_ARGS": f"-F {farm.ssh_config} %h",  # pdsh's default would log in with the local user name
            "TORCHRUNX_LOG_DIR": "",
        }
        self._orch = str(workspace.orch)
        # in the farm's folder, which the nodes' account can enter: DeepSpeed changes to the same folder there
        self._site = farm.folder / "site"
        self._site.mkdir(mode=0o755)
        self._site.chmod(0o755)
        for file in ("hello.py", "with_torchrunx.py"):
            shutil.copyfile(_PROGRAMS / file, self._site / file)
            (self._site / file).chmod(0o644)
        # orch's bundle holds only the one file that is needed, as for the other launchers
        self._code = workspace.folder / "code"
        self._code.mkdir()
        shutil.copyfile(_PROGRAMS / "hello.py", self._code / "hello.py")
        (farm.folder / "hostfile").write_text("".join(f"{host} slots=1\n" for host in self._hosts), encoding="utf-8")
        self._inventory = farm.inventory(workspace.folder, nodes=HOSTS)

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        return [
            self._contestant(ORCH_ECHO, lambda: self._orch_launch("echo", HELLO), self._code),
            self._contestant(CLUSH, self._clush, env=UNBUFFERED),
            self._contestant(PDSH, self._pdsh),
            self._contestant(ORCH_SCRIPT, lambda: self._orch_launch("hello.py"), self._code),
            self._contestant(DEEPSPEED, self._deepspeed),
            self._contestant(TORCHRUNX, self._torchrunx),
            self._contestant(TORCHRUN, self._torchrun),
            self._contestant(ORCH_COLD, self._orch_cold, self._code),
        ]

    def _contestant(
        self,
        name: str,
        commands: Callable[[], Sequence[Sequence[str]]],
        cwd: Path | None = None,
        *,
        env: Mapping[str, str] | None = None,
    ) -> Contestant:
        def run() -> Mapping[str, float]:
            job = Job(commands(), cwd=cwd or self._site, env={**self._env, **(env or {})})
            timing = time_job(job, marker=HELLO.encode(), lines=HOSTS)
            # processes that one contestant leaves on the nodes must not slow down the next
            until(lambda: not self._farm.processes(), deadline_s=30, awaited=f"the processes of {name} to end")
            return {FIRST: timing.lines[0], ALL: timing.lines[-1], END: timing.end}

        return Contestant(name, run)

    def _orch_launch(self, *program: str) -> list[list[str]]:
        return [[self._orch, "ssh-launch", "-i", str(self._inventory), "--", *program]]

    def _orch_cold(self) -> list[list[str]]:
        inventory = self._farm.inventory(self._farm.folder, nodes=HOSTS)  # with new work folders each time
        return [[self._orch, "ssh-launch", "-i", str(inventory), "--", "echo", HELLO]]

    def _clush(self) -> list[list[str]]:
        options = ["-w", ",".join(self._hosts), "-S", "-o", f"-F {self._farm.ssh_config}"]
        return [[installed("clush"), *options, f"echo {HELLO}"]]

    def _pdsh(self) -> list[list[str]]:
        return [[installed("pdsh"), "-R", "ssh", "-w", ",".join(self._hosts), f"echo {HELLO}"]]

    def _deepspeed(self) -> list[list[str]]:
        installed("pdsh")
        (port,) = free_ports(1)
        master = ["--master_addr", self._hosts[0], "--master_port", str(port)]
        options = ["--hostfile", str(self._farm.folder / "hostfile"), "--launcher", "pdsh", "--no_ssh_check", *master]
        return [[str(BIN / "deepspeed"), *options, "hello.py"]]

    def _torchrunx(self) -> list[list[str]]:
        return [[sys.executable, "with_torchrunx.py", ",".join(self._hosts)]]

    def _torchrun(self) -> list[list[str]]:
        (port,) = free_ports(1)
        shape = [f"--nnodes={HOSTS}", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
        return [[str(BIN / "torchrun"), *shape, f"--node-rank={rank}", "hello.py"] for rank in range(HOSTS)]
