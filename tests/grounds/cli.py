"""orch as a user runs it: a separate process with its own home and working folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.node.run.run_folder import attempt_number
from orchestrator.records.run_folder import RunFolder
from tests.until import until


class Started(subprocess.Popen[str]):
    """A process that is killed, not waited for, when its test fails."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


@dataclass(slots=True)
class Orch:
    """Run orch in `cwd` with `ORCH_HOME` below it."""

    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """Words before the command, such as those that enter a namespace."""

    checks_jobs: bool = False
    """Let Slurm jobs check their nodes: that costs each job a step on every node, and few tests are about it."""

    @property
    def home(self) -> Path:
        """The folder of the records."""
        return self.cwd / ".orch-home"  # hidden, so that it is not bundled as code

    def environ(self) -> dict[str, str]:
        """The commands' environment."""
        return {**os.environ, "ORCH_HOME": str(self.home), "NO_COLOR": "1", **self.env}

    def __call__(self, *words: str, code: int | None = 0, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
        """Run to the end; `code` is the expected exit code, None for any."""
        done = subprocess.run(
            self.argv(words),
            cwd=self.cwd,
            env=self.environ(),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        evidence = f"orch {' '.join(words)} exited {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert code is None or done.returncode == code, evidence
        assert "Traceback (most recent call last)" not in done.stderr, evidence
        return done

    def start(self, *words: str) -> Started:
        """Start without waiting, as the leader of a new session, as in a terminal; for a `with` statement."""
        return Started(
            self.argv(words),
            cwd=self.cwd,
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def argv(self, words: Sequence[str]) -> list[str]:
        """The command line."""
        unchecked = ["--no-check"] if words[:1] == ("submit",) and not self.checks_jobs else []
        return [*self.prefix, sys.executable, "-m", "orchestrator", *words[:1], *unchecked, *words[1:]]

    def status(self, run: str = "latest") -> dict[str, Any]:
        """The object that `orch status --json` prints."""
        status: dict[str, Any] = json.loads(self("status", run, "--json", code=None).stdout)
        return status

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """The lines that `orch logs --json` prints, one object each."""
        return [json.loads(line) for line in self("logs", *words, "--json").stdout.splitlines()]

    def supervisor(self, run: str) -> int | None:
        """The pid of the run's supervisor, while there is one."""
        supervisor = RunFolder(self.home / "runs" / run).supervisor()
        return supervisor.pid if supervisor else None

    def supervisors(self) -> list[int]:
        """The pids of the supervisors of all runs of this home, just started ones included."""
        return supervisors_below(self.home)

    def kill_supervisor(self, run: str) -> None:
        """Wait for the run's supervisor and send it SIGKILL."""
        until(lambda: self.supervisor(run) is not None, awaited="the supervisor")
        pid = self.supervisor(run)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.supervisor(run) is None, awaited="the supervisor to be gone")

    def records(self) -> list[dict[str, Any]]:
        """The records that `orch list --json` prints."""
        records: list[dict[str, Any]] = json.loads(self("list", "--json").stdout)
        return records

    def recorded(self, run: str) -> str:
        """The state in the run's record. Cheap enough for `until`, like `printed`."""
        return RunFolder(self.home / "runs" / run).read().state.value

    def printed(self, run: str) -> str:
        """
        All output of ranks, agents and batch script of all attempts, read from their files; for `until`.

        It starts no process: each call of `orch logs` would cost a fifth of a second of CPU.
        """
        folders = sorted({node.parent.parent for node in self.node_folders(run)})
        entries = [entry for folder in folders if folder.is_dir() for entry in sorted(folder.iterdir())]
        attempts = [entry for entry in entries if attempt_number(entry.name) is not None]  # not one that is being made
        names = ("*/rank-*.out", "*/rank-*.err", "*/events.jsonl", "slurm-*.log")
        paths = [path for name in names for attempt in attempts for path in sorted(attempt.glob(name))]
        return "".join(path.read_text("utf-8", "replace") for path in paths)

    def slurm_job(self, run: str) -> str:
        """The Slurm job id in the run's record."""
        return str(RunFolder(self.home / "runs" / run).read().slurm_job)

    def node_folders(self, run: str) -> list[Path]:
        """The run's folders on the nodes, which are all on this machine."""
        plan = RunFolder(self.home / "runs" / run).read_plan()
        return [Path(plan.node_dir(node)) for node in plan.nodes]

    def node_folder(self, run: str, node: str) -> Path:
        """The run's folder on that node."""
        [folder] = [folder for folder in self.node_folders(run) if folder.name == node]
        return folder

    def events(self, node_folder: Path) -> list[dict[str, Any]]:
        """The events that the agent recorded."""
        return [json.loads(line) for line in (node_folder / "events.jsonl").read_text("utf-8").splitlines()]

    def agent_pid(self, run: str, node: str) -> int:
        """The pid of that node's agent."""
        return int(json.loads((self.node_folder(run, node) / "agent.json").read_text("utf-8"))["pid"])

    def rank_pid(self, run: str, node: str, rank: int) -> int:
        """Wait for the agent's record of that rank's process; returns its pid. The first line of a rank may come before that record."""

        def pids() -> list[int]:
            events = self.events(self.node_folder(run, node))
            return [event["pid"] for event in events if event["event"] == "rank-started" and event["rank"] == rank]

        [pid] = until(pids, awaited=f"the start of rank {rank}")
        return int(pid)

    def parent_of(self, pid: int) -> int:
        """The pid of the parent process."""
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def processes_of(self, run: str) -> list[int]:
        """Pids on this machine of all ranks of the run and their children."""
        variable = f"ORCH_RUN_ID={run}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and variable in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


def supervisors_below(folder: Path) -> list[int]:
    """The pids of the supervisors of all runs whose records are below the folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and b"orchestrator.usecases.owner.start" in (
                process / "cmdline"
            ).read_bytes().split(b"\0"):
                [home] = re.findall(rb"(?:^|\0)ORCH_HOME=([^\0]*)", (process / "environ").read_bytes()) or [b""]
                if os.fsencode(folder) in home:
                    found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
