"""All reports of a rank about its steps: log, metrics.jsonl, reporters, bar, plot and summary."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, TextIO

from trainer.config.config import TrainConfig
from trainer.console import ERASE_LINE, is_terminal, log_line
from trainer.errors import StorageUserError, UserError
from trainer.io import replace_text
from trainer.metrics.jsonl import ALLOCATOR_COUNTS, MetricsFile, StepLog, StepResult, Summary, percentile, read_records
from trainer.metrics.mfu import peak_flops
from trainer.metrics.reporters import Reporter, ReportError, missing_package, open_reporters
from trainer.runtime.group import Group
from trainer.text import hours


class MetricsHub:
    """For one attempt: begin, add every step, close. Ranks other than 0 only write their own log lines; begin() is a collective."""

    def __init__(self, group: Group, config: TrainConfig, out: Path, tokens_per_sample: int | None) -> None:
        """
        Rates are in tokens if tokens_per_sample is given, else in samples.
        Raises UserError: on all ranks alike; rank 0 lacks a package that config.report requires.
        """
        self.group, self.config, self.out = group, config, out
        self.is_main = group.rank.is_main
        self.unit, self.per_sample = ("tokens", tokens_per_sample) if tokens_per_sample else ("samples", 1)
        self.per_step = config.micro_batch * self.per_sample * config.accumulation * group.rank.world_size
        self._log = StepLog(config.log_steps, self.per_step, self.unit, rank=group.rank.global_rank)
        self._bar = Bar(sys.stderr, config.steps)
        self._seconds: List[float] = []
        self._waited_s = 0.0
        self._share_per_rate: float | None = None
        self._metrics: MetricsFile | None = None
        self._reporters: List[Reporter] = []
        group.raise_if_any(missing_package(config.report) if self.is_main else "")

    def begin(self, last_step: int, flops_per_sample: int | None) -> None:
        """
        Prepare for steps from last_step + 1 on; records of later steps are dropped. Called again after a roll-back.
        Raises UserError: on all ranks alike; a reporter cannot start, or metrics.jsonl cannot be read or written.
        """
        problem = refused = ""
        if self.is_main:
            peak = peak_flops(self.config, self.group.accelerator.device_name())
            if peak and flops_per_sample:
                self._share_per_rate = flops_per_sample / self.per_sample / (peak * self.group.rank.world_size)
            if self._metrics:
                self._metrics.close()
                self._for_each_reporter(lambda reporter: reporter.close(0))
                self._metrics = None
            try:
                self._metrics = MetricsFile(self._path, last_step=last_step)
                self._reporters = open_reporters(self.config, self.out, last_step, os.environ)
            except UserError as exc:
                problem = str(exc)
            except OSError as exc:
                refused = f"{exc.filename or self.out}: {exc.strerror}; metrics are kept there: repair it, or set another out="
        self.group.raise_if_any(problem)
        self.group.raise_if_any(refused, kind=StorageUserError)

    @property
    def work_per_step(self) -> str:
        """The tokens or samples of one step on all ranks, with their unit."""
        return f"{self.per_step} {self.unit}"

    def add(
        self,
        step: int,
        result: StepResult,
        evaluated: Mapping[str, float],
        *,
        total: int,
        last: bool,
        eta_s: float | None = None,
    ) -> Dict[str, Any]:
        """
        Record one step, its evaluation, if any, and the tokens or samples of all steps so far.

        Args:
            eta_s: the time that the remaining steps take; None if unknown.

        Returns:
            With a log line, its MFU and peak memory as far as they are known, for the progress file.
        """
        self._seconds.append(result.seconds)
        self._waited_s += result.data_wait_s
        if self._metrics:
            numbers = {**self._record(step, result), **self.total_work(total), **evaluated}
            record = {key: value if math.isfinite(value) else None for key, value in numbers.items()}  # JSON has no NaN
            self._metrics.write(record)
            self._for_each_reporter(lambda reporter: reporter.write(record))
        self._log.add(result)
        measured: Dict[str, Any] = {}
        if self._log.is_due(step, last=last):
            measured = {"mfu": self._mfu(self._log.rate), "peak_memory_bytes": self.group.accelerator.peak_memory()}
            self._log.write(step, result, eta_s=eta_s, **measured)
        if self.is_main:
            self._bar.show(step, result.loss, f"{self.per_step / result.seconds:.0f} {self.unit}/s", eta_s)
        return {key: value for key, value in measured.items() if value is not None}

    def flush(self) -> None:
        """Call before a checkpoint is written, so that no step it covers can be missing later."""
        self._for_each_reporter(lambda reporter: reporter.flush())

    def totals(self) -> Dict[str, Any]:
        """Totals over the steps of this attempt, for the summary."""
        if not self._seconds:
            return {f"{self.unit}_per_s": 0.0}
        rate = self.per_step * len(self._seconds) / sum(self._seconds)
        return {
            f"{self.unit}_per_s": rate,
            "step_time_p50_s": percentile(self._seconds, 50),
            "step_time_p99_s": percentile(self._seconds, 99),
            "data_wait_s": self._waited_s,
            "mfu": self._mfu(rate),
            "peak_memory_bytes": self.group.accelerator.peak_memory(),
            **self._allocator_counts(),
        }

    def total_work(self, total: int) -> Dict[str, int]:
        """The tokens or samples of all steps, those before a resume included, by name."""
        return {f"total_{self.unit}": total}

    def finish(self, summary: Summary) -> None:
        """Report the result of the training. Everything is saved by then, so a full disk costs only the file."""
        path = self.out / "summary.json"
        if not self._metrics or (not self._seconds and path.exists()):  # an attempt without a step has less to report
            return
        record = summary.record()
        try:
            replace_text(path, json.dumps(record, indent=1) + "\n")
        except OSError as exc:
            log_line(f"WARNING: {path} is not written: {exc.strerror}")
        self._for_each_reporter(lambda reporter: reporter.summarise(record))

    def close(self, code: int) -> None:
        """Call last: drawing the plot and the final upload take time."""
        if not self._metrics:
            return
        self._bar.clear()
        self._metrics.close()
        if code == 0 and "plot" in self.config.report:
            problem = plot_loss(read_records(self._path), self.out / "loss.png")
            log_line(f"loss.png is left out: {problem}" if problem else f"plotted {self.out / 'loss.png'}")
        self._for_each_reporter(lambda reporter: reporter.close(code))

    @property
    def _path(self) -> Path:
        return self.out / "metrics.jsonl"

    def _for_each_reporter(self, act: Callable[[Reporter], None]) -> None:
        """Call `act` for each reporter; one that fails is reported once and removed."""
        for reporter in list(self._reporters):
            try:
                act(reporter)
            except ReportError as exc:
                self._reporters.remove(reporter)
                log_line(f"WARNING: no more is reported to {exc}")

    def _mfu(self, rate: float) -> float | None:
        return rate * self._share_per_rate if self._share_per_rate else None

    def _allocator_counts(self) -> Dict[str, int]:
        """Counts since the process started; empty if the device has none."""
        counted = self.group.accelerator.memory_stats() or {}
        return {key: counted[key] for key in ALLOCATOR_COUNTS if key in counted}

    def _record(self, step: int, result: StepResult) -> Dict[str, Any]:
        """Values that do not exist here are left out; null means that this step has no such number."""
        rate = self.per_step / result.seconds
        memory = {"peak_memory_bytes": self.group.accelerator.peak_memory(), **self._allocator_counts()}
        known = {"mfu": self._mfu(rate), **memory}
        return {
            "step": step,
            "loss": result.loss,
            "lr": result.lr,
            "grad_norm": result.grad_norm,  # not finite, so null, if the step made no update
            f"{self.unit}_per_s": rate,
            "step_time_s": result.seconds,
            "data_wait_s": result.data_wait_s,
            **{key: value for key, value in known.items() if value is not None},
            "time": time.time(),
        }


CELLS = 20
PAUSE_S = 0.1


class Bar:
    """Leaves the cursor at the start of the line, so that the next output overwrites the bar."""

    def __init__(self, stream: TextIO, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if is_terminal(stream) else None
        self._steps, self._clock, self._due = steps, clock, 0.0

    def show(self, step: int, loss: float, rate: str, eta_s: float | None) -> None:
        """Redraw the bar, at most every PAUSE_S."""
        now = self._clock()
        if self._stream is None or now < self._due:
            return
        self._due = now + PAUSE_S
        done = "#" * (CELLS * step // self._steps)
        text = f"{step}/{self._steps} [{done:{CELLS}}] loss {loss:.4f}  {rate}"
        if eta_s is not None:
            text += f"  {hours(eta_s)} left"
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._write(f"{ERASE_LINE}{text[: columns - 1]}\r")

    def clear(self) -> None:
        self._write(ERASE_LINE)

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def plot_loss(records: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Write `path`, replacing it as a whole; returns the reason if there is none, else ""."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed"
    try:
        # Not pyplot: it looks for a display, and keeps every figure.
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 4.5))
    except ImportError as exc:
        return f"matplotlib is installed, but broken: {exc}"
    axes = figure.add_subplot()
    axes.plot([record["step"] for record in records], [record["loss"] for record in records], linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with os.fdopen(os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            figure.savefig(file, format="png", bbox_inches="tight")
        temporary.replace(path)
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    return ""
