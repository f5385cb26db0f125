"""orch as a user types it: a process of its own, with a home and a working folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.store import RunFolder
from tests.until import until


class Started(subprocess.Popen[str]):
    """A process that a failing test does not wait for."""

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

    @property
    def home(self) -> Path:
        """Where the records are."""
        return self.cwd / ".orch-home"  # hidden, so that it does not travel as code

    def environ(self) -> dict[str, str]:
        """The environment of the commands."""
        return {**os.environ, "ORCH_HOME": str(self.home), "NO_COLOR": "1", **self.env}

    def __call__(self, *words: str, code: int | None = 0, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
        """Run to the end; `code` is the exit code that has to come, None for any."""
        done = subprocess.run(
            self.argv(words),
            cwd=self.cwd,
            env=self.environ(),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        said = f"orch {' '.join(words)} ended {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert code is None or done.returncode == code, said
        assert "Traceback (most recent call last)" not in done.stderr, said
        return done

    def start(self, *words: str) -> Started:
        """Start without waiting, leading a session of its own as in a terminal of its own; for a `with` statement."""
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
        return [*self.prefix, sys.executable, "-m", "orchestrator", *words]

    def status(self, run: str = "latest") -> dict[str, Any]:
        """What `orch status --json` says."""
        status: dict[str, Any] = json.loads(self("status", run, "--json", code=None).stdout)
        return status

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """What `orch logs --json` says, a line an object."""
        return [json.loads(line) for line in self("logs", *words, "--json").stdout.splitlines()]

    def supervisor(self, run: str) -> int | None:
        """The pid of the run's supervisor, while there is one."""
        word = RunFolder(self.home / "runs" / run).supervisor()
        return int(word.split()[1]) if word and word.startswith("pid") else None

    def supervisors(self) -> list[int]:
        """The pids of the supervisors of all runs of this home, just started ones included."""
        return supervisors_below(self.home)

    def kill_supervisor(self, run: str) -> None:
        """SIGKILL for the run's supervisor, once it is there."""
        until(lambda: self.supervisor(run) is not None, awaited="the supervisor")
        pid = self.supervisor(run)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.supervisor(run) is None, awaited="the supervisor to be gone")

    def records(self) -> list[dict[str, Any]]:
        """What `orch list --json` says."""
        records: list[dict[str, Any]] = json.loads(self("list", "--json").stdout)
        return records

    def recorded(self, run: str) -> str:
        """The state in the run's record; for `until`, as `printed` is."""
        return RunFolder(self.home / "runs" / run).read().state.value

    def printed(self, run: str) -> str:
        """
        What ranks, agents and batch script of all attempts have written, out of their files; for `until`.

        Nothing is started for it: an `orch logs` that is awaited costs a fifth of a second of CPU each time.
        """
        folders = sorted({node.parent.parent for node in self.node_folders(run)})
        names = (
            "attempt-*/*/rank-*.out",
            "attempt-*/*/rank-*.err",
            "attempt-*/*/events.jsonl",
            "attempt-*/slurm-*.log",
        )
        paths = [path for name in names for folder in folders for path in sorted(folder.glob(name))]
        return "".join(path.read_text("utf-8", "replace") for path in paths)

    def slurm_job(self, run: str) -> str:
        """The run's job as its record has it."""
        return str(RunFolder(self.home / "runs" / run).read().slurm_job)

    def node_folders(self, run: str) -> list[Path]:
        """The run's folders on the nodes, which are folders of this machine."""
        plan = RunFolder(self.home / "runs" / run).read_plan()
        return [Path(plan.node_dir(node)) for node in plan.nodes]

    def node_folder(self, run: str, node: str) -> Path:
        """One of them."""
        [folder] = [folder for folder in self.node_folders(run) if folder.name == node]
        return folder

    def events(self, node_folder: Path) -> list[dict[str, Any]]:
        """What the agent wrote down."""
        return [json.loads(line) for line in (node_folder / "events.jsonl").read_text("utf-8").splitlines()]

    def agent_pid(self, run: str, node: str) -> int:
        """The agent of a node."""
        return int(json.loads((self.node_folder(run, node) / "agent.json").read_text("utf-8"))["pid"])

    def parent_of(self, pid: int) -> int:
        """The parent of a process."""
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def processes_of(self, run: str) -> list[int]:
        """All ranks of the run and what they started, on this machine."""
        mark = f"ORCH_RUN_ID={run}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


def supervisors_below(folder: Path) -> list[int]:
    """The pids of the supervisors of all runs whose records are below the folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"orchestrator.supervision.supervisor" in words and any(os.fsencode(folder) in word for word in words):
            found.append(int(process.name))
    return found
