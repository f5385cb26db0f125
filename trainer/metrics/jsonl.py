"""The log lines of steps, metrics.jsonl and the summary."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from trainer.console import log_line
from trainer.errors import StorageError
from trainer.io import replace_text
from trainer.text import hours

# Torch's names for allocations that were retried after cached memory was freed, and for out-of-memory errors.
ALLOCATOR_COUNTS = ("num_alloc_retries", "num_ooms")


@dataclass(frozen=True)
class Summary:
    """
    The result of a finished training; losses are means over ranks, None if there was nothing left to train.

    Times and rates are of the last attempt, waiting and memory of rank 0; None if unknown. Only one of the two rates is
    set.
    """

    steps: int
    first_loss: float | None
    last_loss: float | None
    wall_s: float
    checkpoint: str
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    step_time_p50_s: float | None = None
    step_time_p99_s: float | None = None
    data_wait_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: int | None = None
    num_alloc_retries: int | None = None
    num_ooms: int | None = None
    total_tokens: int | None = None
    total_samples: int | None = None

    def line(self) -> str:
        """key=value, as all log lines."""
        unit, rate = ("tokens", self.tokens_per_s) if self.samples_per_s is None else ("samples", self.samples_per_s)
        known = {
            "step_time_p50_s": digits(self.step_time_p50_s),
            "step_time_p99_s": digits(self.step_time_p99_s),
            "data_wait_s": digits(self.data_wait_s),
            "mfu": digits(self.mfu),
            **{
                key: str(getattr(self, key))
                for key in ("peak_memory_bytes", *ALLOCATOR_COUNTS, "total_tokens", "total_samples")
            },
        }
        measured = "".join(f"{key}={text} " for key, text in known.items() if getattr(self, key) is not None)
        return (
            f"summary steps={self.steps} first_loss={digits(self.first_loss)} last_loss={digits(self.last_loss)} "
            f"{unit}/s={rate or 0:.0f} wall_s={self.wall_s:.1f} {measured}checkpoint={self.checkpoint}"
        )

    def record(self) -> Dict[str, Any]:
        """The values that are known, for files and reporters."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class StepResult:
    """
    One optimizer step; `losses` in rank order.

    seconds: from the end of the step before, or from its begin after an evaluation or a save, to its end.
    data_wait_s: the time that the host waited for batches.
    """

    losses: Sequence[float]
    lr: float
    grad_norm: float
    seconds: float
    data_wait_s: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over ranks."""
        return sum(self.losses) / len(self.losses)


def digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` per cent of all values do not exceed; values must not be empty."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


class StepLog:
    """
    The `step=…` lines: rank 0 logs the mean over ranks, the others their own loss.

    At step 1, every `every` steps and at the last one; rates and times are means since the previous line.
    """

    def __init__(self, every: int, per_step: int, unit: str, *, rank: int) -> None:
        self.every, self.per_step, self.unit, self.rank = every, per_step, unit, rank
        self.steps, self.seconds, self.waited_s = 0, 0.0, 0.0

    def add(self, result: StepResult) -> None:
        self.steps += 1
        self.seconds += result.seconds
        self.waited_s += result.data_wait_s

    def is_due(self, step: int, *, last: bool) -> bool:
        return step == 1 or last or step % self.every == 0

    @property
    def rate(self) -> float:
        """Tokens or samples per second since the previous line."""
        return self.steps * self.per_step / self.seconds

    def write(
        self, step: int, result: StepResult, *, mfu: float | None, peak_memory_bytes: int | None, eta_s: float | None
    ) -> None:
        """Print a line about the steps since the previous one; values that are not known are left out."""
        if self.rank == 0:
            share = "" if mfu is None else f" mfu={mfu:.4f}"
            memory = "" if peak_memory_bytes is None else f" peak_memory_gb={peak_memory_bytes / 1e9:.3f}"
            eta = "" if eta_s is None else f" eta={hours(eta_s)}"
            log_line(
                f"step={step} loss={result.loss:.4f} lr={result.lr:.3e} grad_norm={result.grad_norm:.4f} "
                f"{self.unit}/s={self.rate:.0f} step_time_s={self.seconds / self.steps:.4f} "
                f"data_wait_s={self.waited_s / self.steps:.4f}{share}{memory}{eta}"
            )
        else:
            log_line(f"step={step} loss={result.losses[self.rank]:.4f}")  # the form that orch hides on a terminal
        self.steps, self.seconds, self.waited_s = 0, 0.0, 0.0


class MetricsFile:
    """metrics.jsonl of rank 0: one line per step, full precision; a resumed run continues it without duplicates."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Records after `last_step` are dropped: these steps will be repeated. Raises OSError."""
        if path.exists():
            lines = _lines(path)
            replace_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= last_step))
        self._path = path
        self._file = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one line, readable at once; StorageError if the disk refuses it."""
        line = json.dumps(record).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):  # the disk became full within the line
                os.write(self._file, line[written:])
        except OSError as exc:
            raise StorageError(f"cannot write {self._path}: {exc.strerror}; free some space, and start again") from exc

    def close(self) -> None:
        os.close(self._file)


def read_records(path: Path) -> List[Dict[str, Any]]:
    """The recorded steps, in order; a line that a crash cut short is left out. Raises OSError."""
    lines = _lines(path) if path.exists() else []
    return [json.loads(line) for line in lines if _step_of(line) < float("inf")]


def _lines(path: Path) -> List[str]:
    """A damaged byte costs only its line."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _step_of(line: str) -> float:
    """Infinity for a line cut short by a crash."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
