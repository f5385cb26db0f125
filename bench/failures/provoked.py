"""A failure that is provoked by a program, the diagnosis that is right, and the remedy that is followed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.grounds.cli import Orch

Outcome = tuple[dict[str, Any], str]
"""The diagnosis, and the result of the remedy: the state of the next run, or the result of `--prove`; empty if it was not followed."""

INVENTORY = """\
name: f
accelerator: cpu
devices: {devices}
transport: local
env: {{OMP_NUM_THREADS: 1}}
defaults: {{workdir: {folder}/work}}
nodes: [{{name: 'n[0-1]'}}]
"""
HEAD = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
WAIT = "\ntime.sleep(600)\n"
"""The ranks wait here for the end of the run; left out when the remedy is followed."""
LAUNCH_S, PROVE_S = 180, 400
UNDIAGNOSED: dict[str, Any] = {"signature": None, "kind": None, "ranks": [], "confidence": None}


@dataclass(frozen=True)
class Provoked:
    """A program that fails on two nodes, and the diagnosis that is right: the signature, the class and the ranks on which it began."""

    name: str
    program: str
    signatures: Sequence[str | None]
    """Any of them is right; None: no text names the cause, which is unknown."""
    kind: str
    ranks: Sequence[int] | None = (1,)
    """None: it begins on every rank, or no text names the rank."""
    fixed: tuple[str, str] | None = None
    """A part of the program, and the part that replaces it by the remedy."""
    ranks_per_node: int = 1
    command: Sequence[str] = ("--", "train.py")
    provoke: Callable[[Path], Outcome] | None = None
    """How it is provoked if not by the program alone."""

    def outcome(self, folder: Path) -> Outcome:
        """Provoke the failure, and follow the remedy if the program has a part that it names, or if orch can make the change."""
        if self.provoke is not None:
            return self.provoke(folder)
        orch = Orch(folder)
        found = self._launch(orch, self.program)["failure"] or UNDIAGNOSED
        if self.fixed is not None:
            broken, repaired = self.fixed
            assert broken in self.program, f"{self.name}: the program has no {broken!r}"
            return found, self._launch(orch, self.program.replace(broken, repaired).replace(WAIT, ""))["state"]
        proof = orch("diagnose", "--prove", "--json", code=None, timeout_s=PROVE_S)
        return found, json.loads(proof.stdout)["result"] if proof.stdout else ""

    def is_right(self, found: dict[str, Any]) -> bool:
        """Return whether this is the diagnosis that is expected."""
        is_cause = found["signature"] in self.signatures and found["kind"] == self.kind
        return is_cause and (self.ranks is None or found["ranks"] == list(self.ranks))

    def _launch(self, orch: Orch, program: str) -> dict[str, Any]:
        """The status of the run at its end."""
        inventory = INVENTORY.format(devices=self.ranks_per_node, folder=orch.cwd)
        (orch.cwd / "inventory.yaml").write_text(inventory, "utf-8")
        (orch.cwd / "train.py").write_text(program, "utf-8")
        orch("ssh-launch", "--no-check", *self.command, code=None, timeout_s=LAUNCH_S)
        return orch.status()


def on_rank(rank: int, lines: str) -> str:
    """A program in which one rank runs the lines, while the others wait."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"{HEAD}if rank == {rank}:\n{body}{WAIT}"
