"""The progress file of this rank, which `orch status` reads. No torch here."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional

from ..io import replace_text  # relative: scripts import this package under another name (trainer/scripts)
from .pace import Pace
from .rank import Rank

EVERY_S = 1.0


def ignore_phase(_: str) -> None:
    """Do nothing when a phase begins."""


@dataclass
class Progress:
    """
    The progress file, replaced as a whole at every write; outside orch there is none.

    in_background: of steps that follow each other, a thread writes the newest one, once a second.

    Mutable: values in `extra` stay in the file. `steps` is the total, None if unknown. `on_phase` is called with each phase.
    """

    rank: Rank
    steps: Optional[int]
    extra: Dict[str, Any] = field(default_factory=dict)
    on_phase: Callable[[str], object] = ignore_phase
    broken: bool = False
    phase: str = "init"
    step: int = 0
    in_background: bool = False
    _pace: Pace = field(default_factory=Pace)
    _is_old: bool = False
    _lock: Any = field(default_factory=threading.Lock)
    _thread: Optional[threading.Thread] = None

    def reached(self, event: str) -> None:
        """Note when an event was first reached in this attempt, for `orch stats`; rank 0 writes it with the next phase."""
        if self.rank.is_main:
            with self._lock:
                self.extra.setdefault("times", {}).setdefault(event, time.time())

    def write(self, phase: str, step: int, **extra: object) -> None:
        """Begin a phase: init, step, eval, save, saved or done. `extra` stays in the file from now on."""
        if self.phase == "step":
            self.reached("first_step_end")
        if phase == "step":
            self.reached("first_step")
        self.on_phase(phase)
        is_next = self.in_background and phase == self.phase == "step"
        with self._lock:
            self.phase, self.step = phase, step
            self._pace.add(time.monotonic(), step)
            self.extra.update(extra)
            self._is_old = is_next
            if not is_next:
                self._write()
        if is_next and self._thread is None and self.rank.progress_dir is not None:
            self._thread = threading.Thread(target=self._write_steps, daemon=True)
            self._thread.start()

    def keep(self, values: Dict[str, Any]) -> None:
        """Add values that are written with the next phase."""
        with self._lock:
            self.extra.update(values)

    def add(self, **extra: object) -> None:
        """Add values without beginning another phase."""
        with self._lock:
            self.extra.update(extra)
            self._write()

    def eta_s(self, step: int) -> Optional[float]:
        """The time that the steps after `step` take, with saves and evaluations; None if it is not known."""
        if self.steps is None or self._pace.step_s is None:
            return None
        return (self.steps - step) * self._pace.step_s

    def _write_steps(self) -> None:
        """Write the newest step once a second, so that no rank waits for its file system and none seems to stand still."""
        while not self.broken:
            time.sleep(EVERY_S)
            with self._lock:
                if self._is_old:
                    self._write()

    def _write(self) -> None:
        self._is_old = False
        if self.rank.progress_dir is None or self.broken:
            return
        total = {} if self.steps is None else {"steps": self.steps}
        known = {"step_s": self._pace.step_s, "eta_s": self.eta_s(self.step)}
        pace = {key: value for key, value in known.items() if value is not None}
        record = {"step": self.step, **total, "phase": self.phase, "time": time.time(), **pace, **self.extra}
        try:
            replace_text(self.rank.progress_dir / f"{self.rank.global_rank}.json", json.dumps(record))
        except OSError as exc:
            # Training continues: a full disk under the run folder must not cost the steps since the last checkpoint.
            self.broken = True
            sys.stderr.write(f"WARNING: rank {self.rank.global_rank}: no more progress is written: {exc}\n")
