"""
Report the progress of a program to orch: `from orch_progress import report`. For programs of users; Python 3.8, standard library.

Every rank calls it. In a process that is not a rank of orch, it does nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Mapping, Optional, Tuple

EVERY_S = 1.0  # between two writes, unless something else than the step has changed
SPEED_S = 60.0  # the speed is the mean of one or two such times


class Reporter:
    """Writes the progress file of a rank."""

    def __init__(
        self,
        environ: Mapping[str, str],
        clock_s: Callable[[], float] = time.monotonic,
        at_exit: Callable[[Callable[[], object]], object] = atexit.register,
    ) -> None:
        self._clock_s, self._at_exit = clock_s, at_exit
        names = ("ORCH_RUN_DIR", "ORCH_ATTEMPT", "ORCH_NODE", "RANK")
        run, attempt, node, rank = (environ.get(name, "") for name in names)
        self._path = ""
        if run and attempt and node and rank:
            self._path = os.path.join(run, f"attempt-{attempt}", node, "progress", f"{rank}.json")
        self._pid = os.getpid()
        self._values: Dict[str, object] = {}
        self._newest: Optional[Tuple[float, int]] = None  # the time of the newest step
        self._points: List[Tuple[float, int]] = []  # as in trainer/runtime/pace.py
        self._is_written = True
        self._written_s = 0.0

    def report(
        self,
        step: int,
        saved: Optional[int] = None,
        phase: Optional[str] = None,
        *,
        done: bool = False,
        steps: Optional[int] = None,
        loss: Optional[float] = None,
    ) -> None:
        """
        Report how far this rank is.

        Args:
            step: the optimizer steps that are done, those of earlier attempts included.
            saved: the newest step that a new attempt can continue from; the last one stays if it is not given.
            phase: `step` (the default), or before something that takes long: `init`, `eval` or `save`.
            done: the work is finished; if the rank crashes afterwards, it counts as done.
            steps: how many steps there will be.
            loss: the loss of the step.
        """
        if not self._path or os.getpid() != self._pid:  # a worker of a data loader has the variables, too
            return
        values = {"phase": "done" if done else phase or "step", "saved": self._values.get("saved"), **self._kept()}
        if saved is not None:
            values["saved"] = int(saved)
        if steps is not None:
            values["steps"] = int(steps)
        has_changed = any(values.get(name) != self._values.get(name) for name in ("phase", "saved", "steps"))
        if loss is not None:
            values["loss"] = float(loss)
        if not self._values:
            self._at_exit(self._write_last)
        self._values = {"step": int(step), **values, **self._speed(int(step)), "time": time.time()}
        self._is_written = False
        if has_changed or self._clock_s() >= self._written_s + EVERY_S:
            self._write()

    def _speed(self, step: int) -> Dict[str, object]:
        """The seconds of a step, once two have been reported after the first one, which may compile and load."""
        if self._newest is None or step < self._newest[1]:
            self._newest, self._points = (self._clock_s(), step), []
        elif step > self._newest[1]:
            self._newest = self._clock_s(), step
            if not self._points or self._newest[0] - self._points[-1][0] >= SPEED_S:
                self._points = [*self._points[-1:], self._newest]
        (begin_s, begin), (now_s, newest) = self._points[0] if self._points else self._newest, self._newest
        return (
            {"step_s": float(f"{(now_s - begin_s) / (newest - begin):.4g}")}
            if newest > begin and now_s > begin_s
            else {}
        )

    def _kept(self) -> Dict[str, object]:
        return {name: self._values[name] for name in ("steps", "loss") if name in self._values}

    def _write_last(self) -> None:
        if not self._is_written and os.getpid() == self._pid:
            self._write()

    def _write(self) -> None:
        """Replace the file as a whole; a full disk must not end the program."""
        self._is_written, self._written_s = True, self._clock_s()
        try:
            with open(f"{self._path}.{self._pid}", "w", encoding="utf-8") as file:
                json.dump(self._values, file)
            os.replace(file.name, self._path)
        except OSError as error:
            sys.stderr.write(f"WARNING: no more progress is reported to orch: {error}\n")
            self._path = ""


report = Reporter(os.environ).report
