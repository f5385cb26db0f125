"""orch as a user types it: a process of its own, with a home and a working folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Orch:
    """Run orch in `cwd` with `ORCH_HOME` below it."""

    cwd: Path
    env: dict[str, str] = field(default_factory=dict)

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

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start without waiting, leading a session of its own as in a terminal of its own."""
        return subprocess.Popen(
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
        return [sys.executable, "-m", "orchestrator", *words]

    def status(self, run: str = "latest") -> dict[str, Any]:
        """What `orch status --json` says."""
        status: dict[str, Any] = json.loads(self("status", run, "--json", code=None).stdout)
        return status

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """What `orch logs --json` says, a line an object."""
        return [json.loads(line) for line in self("logs", *words, "--json").stdout.splitlines()]
