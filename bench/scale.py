"""
`python -m bench.scale`: a run of many simulated nodes, and what it costs the controller.

Every node is a loopback address of one sshd. Logins are real; the endpoints are answered by one process (simulated_nodes.py), so
that the controller does all that it does for real nodes, and the nodes cost a small part of what real ones do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.processes import adopt_orphans
from bench.workspace import BIN, Workspace
from tests.grounds.keeper import descendants, kill_each
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

PROGRAMS = Path(__file__).parent / "programs"
CUT = 10
STEADY_S = 20.0
LIMIT_S = 300.0  # of each phase
POLL_S = 0.02
AIMS = {"start": 15.0, "stop": 5.0, "status": 5.0, "cut known": 15.0}
NODES_MISSING = (
    4  # exit code of orch status; on a machine that is busy with other work, some simulated nodes are too slow
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Usage:
    """The largest use of a process, as it was seen: memory in MB, threads, open files; and its CPU seconds so far."""

    memory: float = 0.0
    threads: int = 0
    files: int = 0
    cpu: float = 0.0

    def look(self, pid: int) -> None:
        """Look at the process once more; nothing changes if it has ended."""
        try:
            status = Path(f"/proc/{pid}/status").read_text("utf-8")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            self.memory = max(self.memory, int(fields["VmHWM"].split()[0]) / 1024)
            self.threads = max(self.threads, int(fields["Threads"]))
            self.files = max(self.files, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208  thousands
            self.cpu = cpu_s(pid)
        except (OSError, KeyError):
            return


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended: wall and CPU seconds, and its use of the machine."""

    wall: float
    cpu: float
    usage: Usage
    code: int
    output: str


def cpu_s(pid: int, *, with_children: bool = False) -> float:
    """The CPU seconds of a process, and of the children that it has waited for; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / TICKS_PER_S


class Scale:
    """A farm of simulated nodes, and the commands on them."""

    def __init__(self, workspace: Workspace, farm: Farm, simulator: subprocess.Popen[str]) -> None:
        self._workspace, self._farm, self._simulator = workspace, farm, simulator

    def orch(self, *words: str) -> Done:
        """Run a command to its end."""
        begun = time.monotonic()
        with (self._workspace.folder / "output").open("w+") as output:
            process = subprocess.Popen(
                [str(BIN / "orch"), *words],
                cwd=self._workspace.folder,
                env=self._workspace.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            usage = Usage()
            while True:
                pid, status, used = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                usage.look(process.pid)
                if time.monotonic() - begun > LIMIT_S:
                    process.send_signal(signal.SIGINT)
                time.sleep(POLL_S)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - begun
            output.seek(0)
            text = output.read()
        return Done(wall, used.ru_utime + used.ru_stime, usage, process.returncode, text)

    def simulated(self, **command: object) -> dict[str, float]:
        """Send a command to the simulator, or only get its counts."""
        assert self._simulator.stdin is not None
        assert self._simulator.stdout is not None
        self._simulator.stdin.write(json.dumps(command) + "\n")
        self._simulator.stdin.flush()
        counts: dict[str, float] = json.loads(self._simulator.stdout.readline())
        return counts

    def nodes_cpu(self) -> float:
        """The CPU seconds of the nodes' side so far: of sshd, also of sessions that have ended, and of the simulator."""
        sshd = [pid for pid, name in descendants(os.getpid()).items() if name.startswith(("sshd", "relay"))]
        return self.simulated()["cpu"] + sum(cpu_s(pid, with_children=True) for pid in sshd)

    def run_folder(self) -> Path:
        """The folder of the newest run's record."""
        return max((self._workspace.folder / "orch-home/runs").iterdir(), key=lambda path: path.stat().st_ctime)

    def supervisor(self) -> int:
        """The pid of the newest run's supervisor."""
        return int((self.run_folder() / "supervisor.lock").read_text("utf-8").split()[1])


@contextmanager
def simulated_nodes(workspace: Workspace, nodes: int) -> Iterator[Scale]:
    """Start the sshd and the simulator, and write the inventory."""
    with open_farm() as farm:
        relay, address = farm.folder / "relay", farm.folder / "nodes.socket"
        subprocess.run(["cc", "-O2", "-o", str(relay), str(PROGRAMS / "relay.c")], check=True)
        farm.inventory(workspace.folder, nodes=nodes, shared=True)
        with (
            subprocess.Popen(
                [sys.executable, str(PROGRAMS / "simulated_nodes.py"), str(address), str(nodes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as simulator,
            farm.restarted(ForceCommand=f"exec {relay} {address}", LogLevel="ERROR"),
        ):
            assert simulator.stdout is not None
            simulator.stdout.readline()
            try:
                yield Scale(workspace, farm, simulator)
            finally:
                simulator.kill()


@dataclass(slots=True)
class Row:
    """One phase: wall seconds, and the CPU seconds of the command, of the supervisor and of the nodes' side."""

    phase: str
    wall: float = 0.0
    command: float = 0.0
    supervisor: float = 0.0
    nodes: float = 0.0


@dataclass(slots=True)
class Phases:
    """The phases of runs on simulated nodes, and the use of launcher and supervisor."""

    scale: Scale
    rows: list[Row] = field(default_factory=list)
    uses: dict[str, Usage] = field(default_factory=lambda: {"launcher": Usage(), "supervisor": Usage()})

    @contextmanager
    def phase(self, name: str) -> Iterator[Row]:
        """Measure what is done in the context."""
        row, supervisor = Row(name), self.uses["supervisor"]
        nodes_before, supervised_before, begun = self.scale.nodes_cpu(), supervisor.cpu, time.monotonic()
        yield row
        row.wall = time.monotonic() - begun
        supervisor.look(self.scale.supervisor())
        row.supervisor, row.nodes = supervisor.cpu - supervised_before, self.scale.nodes_cpu() - nodes_before
        self.rows.append(row)
        report(row)

    def command(self, name: str, *words: str, codes: Sequence[int] = (0,)) -> Usage:
        """Measure a command of orch; return its use of the machine."""
        with self.phase(name) as row:
            done = self.scale.orch(*words)
            row.command = done.cpu
        if done.code not in codes:
            raise SystemExit(f"orch {' '.join(words)} ended with {done.code}: {done.output[:4000]}")
        if done.code:
            sys.stderr.write(f"{done.output[:1000]}\n")
        return done.usage

    def start(self, name: str) -> Usage:
        """Measure the start of a run; return what the launcher used."""
        self.uses["supervisor"].cpu = 0.0
        return self.command(name, "ssh-launch", "--detach", "--", "sleep", "1000")


def measure(
    workspace: Workspace, nodes: int, *, steady_s: float = STEADY_S, cut_nodes: int = CUT
) -> tuple[list[Row], dict[str, Usage], float]:
    """
    Start, supervise, query, stop and cut runs; without `cut_nodes` there is no second run.

    Returns:
        The phases, the use of launcher and supervisor, and the share of a core that the supervisor takes while nothing happens.
    """
    with simulated_nodes(workspace, nodes) as scale:
        phases = Phases(scale)
        phases.uses["launcher"] = phases.start("start")
        assert scale.simulated()["running"] == nodes
        with phases.phase(f"{steady_s:g} s of supervision") as steady:
            until(_after(steady_s), deadline_s=LIMIT_S, awaited="the time")
        phases.command("status", "status", codes=(0, NODES_MISSING))
        phases.command("stop", "stop", "latest")
        if cut_nodes:
            phases.start("start, again")
            _cut(phases, nodes, min(cut_nodes, nodes // 4))
    return phases.rows, phases.uses, steady.supervisor / steady_s


def _cut(phases: Phases, nodes: int, count: int) -> None:
    """Cut nodes of the run off, and wait until that is recorded."""

    def record() -> dict[str, Any]:
        content: dict[str, Any] = json.loads((phases.scale.run_folder() / "run.json").read_text("utf-8"))
        return content

    with phases.phase("cut known"):
        phases.scale.simulated(cut=[f"n{index * (nodes // count) + 1}" for index in range(count)])
        until(lambda: record()["state"] == "FAILED", deadline_s=LIMIT_S, awaited="the record to be FAILED")
    sys.stderr.write(f"{record()['message']}\n")


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def report(row: Row) -> None:
    sys.stderr.write(f"{row.phase}: {row.wall:.1f} s, {row.command:.1f} + {row.supervisor:.1f} CPU s\n")
    sys.stderr.flush()


def table(nodes: int, rows: Sequence[Row], uses: dict[str, Usage], share: float) -> str:
    """The figures as two tables in Markdown."""
    lines = [
        f"| {nodes:,} nodes | wall | aim | CPU of the command | of the supervisor | of the nodes' side |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        aim = f"{AIMS[row.phase]:g} s" if row.phase in AIMS else ""
        cells = (f"{value:.1f} s" for value in (row.command, row.supervisor, row.nodes))
        lines.append(f"| {row.phase} | {row.wall:.1f} s | {aim} | {' | '.join(cells)} |")
    lines += ["", "| | memory | threads | open files | CPU while nothing happens |", "|---|---|---|---|---|"]
    for name, usage in uses.items():
        cpu = f"{share:.0%} of a core" if name == "supervisor" else ""
        lines.append(f"| {name} | {usage.memory:.0f} MB | {usage.threads:,} | {usage.files:,} | {cpu} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="A run of many simulated nodes.")
    parser.add_argument("--nodes", type=int, default=1024, metavar="N", help="2 to 1024 (default: 1024)")
    parser.add_argument(
        "--steady", type=float, default=STEADY_S, metavar="S", help="seconds of supervision (default: 20)"
    )
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        try:
            figures = measure(Workspace.at(Path(folder)), options.nodes, steady_s=options.steady)
        finally:
            kill_each(descendants(os.getpid()))  # a supervisor, which outlives its launcher
    sys.stdout.write(table(options.nodes, *figures))


if __name__ == "__main__":
    main()
