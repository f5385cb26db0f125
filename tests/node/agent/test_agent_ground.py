"""The ground of the agent's tests: a run folder, real agents in it, and the files that they write."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.node.system import processes
from tests.until import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

AGENT = Path(processes.__file__).parents[1]


def python38() -> str | None:
    """An interpreter of Python 3.8, from PATH or pyenv; a pyenv shim on PATH may have no interpreter."""
    on_path = shutil.which("python3.8")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [on_path] if on_path else []
    for python in (*found, *(str(path) for path in sorted(pyenv.glob("versions/3.8.*/bin/python3")))):
        answer = subprocess.run([python, "-V"], capture_output=True, text=True, check=False)
        if answer.stdout.startswith("Python 3.8."):
            return python
    return None


PYTHON38 = python38()
PYTHONS = [
    pytest.param(sys.executable, id="this python"),
    pytest.param(
        PYTHON38 or "",
        id="python 3.8",
        marks=pytest.mark.skipif(PYTHON38 is None, reason="no Python 3.8 on PATH or in pyenv"),
    ),
]


def alive(pid: int) -> bool:
    stat = processes.stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


class Ground:
    """One attempt of a run, in a folder whose name needs quoting, and the agents that were started in it."""

    def __init__(self, root: Path, python: str) -> None:
        self.python = python
        self.run_dir = root / "it's a $HOME; run"
        self.attempt = self.run_dir / "attempt-1"
        self.bundle = root / "bundle"
        (self.bundle / "code").mkdir(parents=True)
        self.attempt.mkdir(parents=True)
        self.agents: list[subprocess.Popen[str]] = []

    def job(
        self,
        *args: str,
        ranks: Sequence[int] = (1,),
        grace_s: float = 5.0,
        program: Mapping[str, object] | None = None,
        **more: object,
    ) -> Path:
        """Write job.json; `args` is an executable and its arguments, unless `program` has another form."""
        fields: dict[str, object] = {"python": False, "args": args, "pythonpath": None, "cwd": None}
        names = [f"n{index}" for index in range(len(ranks))]
        job = {"version": 1, "run_id": "gpt-20261120-101500-ab12", "attempt": 1, "run_dir": str(self.run_dir)}
        job |= {"bundle_dir": str(self.bundle), "nodes": names, "addresses": [], "ranks": list(ranks)}
        job |= {"program": {**fields, **(program or {})}, "grace_s": grace_s, **more}
        path = self.attempt / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        return path

    def start(
        self,
        node_rank: int = 0,
        *,
        rendezvous: str | None = None,
        env: Mapping[bytes, bytes] | None = None,
        before_exec: Callable[[], object] | None = None,
    ) -> subprocess.Popen[str]:
        """Start an agent; `env` is added to the environment of the tests."""
        started = subprocess.Popen(
            self.argv(node_rank, rendezvous),
            env=None if env is None else {**os.environb, **env},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before_exec,  # noqa: PLW1509  (the tests start no threads)
        )
        self.agents.append(started)
        return started

    def argv(self, node_rank: int = 0, rendezvous: str | None = None) -> list[str]:
        argv = [self.python, str(AGENT), "run", str(self.attempt / "job.json")]
        argv += ["--node", f"n{node_rank}", "--node-rank", str(node_rank)]
        return argv + (["--rendezvous", rendezvous] if rendezvous is not None else [])

    def run(
        self,
        node_rank: int = 0,
        *,
        rendezvous: str | None = None,
        env: Mapping[bytes, bytes] | None = None,
        before_exec: Callable[[], object] | None = None,
        timeout_s: float = 30,
    ) -> tuple[int, str]:
        """Start an agent and wait for its end; return its exit code and stderr."""
        started = self.start(node_rank, rendezvous=rendezvous, env=env, before_exec=before_exec)
        _, err = started.communicate(timeout=timeout_s)
        return started.returncode, err

    def folder(self, node_rank: int = 0) -> Path:
        return self.attempt / f"n{node_rank}"

    def out(self, rank: int = 0, node_rank: int = 0) -> str:
        path = self.folder(node_rank) / f"rank-{rank}.out"
        return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""

    def record(self, node_rank: int = 0) -> dict[str, Any]:
        """Wait for agent.json and read it."""
        path = self.folder(node_rank) / "agent.json"
        until(path.exists, awaited="agent.json")
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def events(self, name: str, node_rank: int = 0) -> list[dict[str, Any]]:
        return [event for event in self.lines("events.jsonl", node_rank) if event["event"] == name]

    def lines(self, name: str, node_rank: int = 0) -> list[dict[str, Any]]:
        path = self.folder(node_rank) / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def finished(self, node_rank: int = 0) -> dict[str, Any]:
        (event,) = self.events("agent-finished", node_rank)
        return event

    def pid_of_rank(self) -> int:
        """The pid of the only rank, once the agent has recorded it, which may be after the rank's first output."""
        (event,) = until(lambda: self.events("rank-started"), awaited="the rank's start")
        return int(event["pid"])

    def pid_in(self, name: str) -> int:
        """Wait for the pid that a rank's program writes to a file in the run folder."""
        path = self.run_dir / name
        return int(
            until(lambda: path.exists() and path.read_text(encoding="utf-8").strip(), awaited=f"a pid in {name}")
        )

    def close(self) -> None:
        for started in self.agents:
            if started.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(started.pid, signal.SIGTERM)
                    os.kill(started.pid, signal.SIGINT)
            started.communicate(timeout=30)


@pytest.fixture(params=PYTHONS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path, request.param)
    yield ground
    ground.close()
