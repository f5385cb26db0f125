"""The progress file of this rank, which `orch status` reads. No torch here."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional

from ..io import replace_text  # relative: scripts import this package under another name (trainer/scripts)
from .rank import Rank


def ignore_phase(_: str) -> None:
    """Do nothing when a phase begins."""


@dataclass
class Progress:
    """
    The progress file, replaced as a whole at every write; outside orch there is none.

    Mutable: values in `extra` stay in the file. `steps` is the total, None if unknown. `on_phase` is called with each phase.
    """

    rank: Rank
    steps: Optional[int]
    extra: Dict[str, Any] = field(default_factory=dict)
    on_phase: Callable[[str], object] = ignore_phase
    broken: bool = False
    phase: str = "init"
    step: int = 0

    def reached(self, event: str) -> None:
        """Note when an event was first reached in this attempt, for `orch stats`; rank 0 writes it with the next phase."""
        if self.rank.is_main:
            self.extra.setdefault("times", {}).setdefault(event, time.time())

    def write(self, phase: str, step: int, **extra: object) -> None:
        """Begin a phase: init, step, eval, save, saved or done. `extra` stays in the file from now on."""
        if self.phase == "step":
            self.reached("first_step_end")
        if phase == "step":
            self.reached("first_step")
        self.on_phase(phase)
        self.phase, self.step = phase, step
        self.add(**extra)

    def add(self, **extra: object) -> None:
        """Add values without beginning another phase."""
        self.extra.update(extra)
        if self.rank.progress_dir is None or self.broken:
            return
        total = {} if self.steps is None else {"steps": self.steps}
        record = {"step": self.step, **total, "phase": self.phase, "time": time.time(), **self.extra}
        try:
            replace_text(self.rank.progress_dir / f"{self.rank.global_rank}.json", json.dumps(record))
        except OSError as exc:
            # Training continues: a full disk under the run folder must not cost the steps since the last checkpoint.
            self.broken = True
            sys.stderr.write(f"WARNING: rank {self.rank.global_rank}: no more progress is written: {exc}\n")
