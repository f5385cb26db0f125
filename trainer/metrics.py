"""What a training tells about its steps: the log lines, metrics.jsonl and the summary."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from trainer.place import replace_text, say


@dataclass(frozen=True)
class Summary:
    """What a finished training comes to; losses are means over ranks, None when there was nothing left to train."""

    steps: int
    first_loss: float | None
    last_loss: float | None
    tokens_per_s: float
    wall_s: float
    checkpoint: str

    def line(self) -> str:
        """key=value, as all log lines."""
        return (
            f"summary steps={self.steps} first_loss={_digits(self.first_loss)} last_loss={_digits(self.last_loss)} "
            f"tokens/s={self.tokens_per_s:.0f} wall_s={self.wall_s:.1f} checkpoint={self.checkpoint}"
        )


@dataclass(frozen=True)
class StepResult:
    """One optimizer step; `losses` in rank order."""

    losses: Sequence[float]
    lr: float
    grad_norm: float
    seconds: float
    is_warned: bool
    """Some rank was told that its time is nearly up: all of them save now, and end."""

    @property
    def loss(self) -> float:
        """Mean over ranks."""
        return sum(self.losses) / len(self.losses)


def _digits(loss: float | None) -> str:
    return "none" if loss is None else f"{loss:.4f}"


class StepLog:
    """
    The `step=…` lines: rank 0 tells the mean over ranks, the others their own loss.

    At step 1, every `every` steps and at the last one; tokens/s is over the steps since the line before.
    """

    def __init__(self, every: int, tokens_per_step: int, rank: int) -> None:
        self.every, self.tokens_per_step, self.rank = every, tokens_per_step, rank
        self.steps, self.seconds = 0, 0.0

    def add(self, step: int, result: StepResult, *, last: bool) -> None:
        """Count the step, print when it is time."""
        self.steps += 1
        self.seconds += result.seconds
        if not (step == 1 or last or step % self.every == 0):
            return
        if self.rank == 0:
            rate = self.steps * self.tokens_per_step / self.seconds
            say(
                f"step={step} loss={result.loss:.4f} lr={result.lr:.3e} grad_norm={result.grad_norm:.4f} "
                f"tokens/s={rate:.0f} step_time_s={self.seconds / self.steps:.4f}"
            )
        else:
            say(f"step={step} loss={result.losses[self.rank]:.4f}")
        self.steps, self.seconds = 0, 0.0


class Metrics:
    """metrics.jsonl of rank 0: a line a step, full precision; a resumed run continues it without doubles."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Steps after `last_step` are dropped: they will be made again."""
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            replace_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= last_step))
        self._file = os.fdopen(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """One line, readable at once."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _step_of(line: str) -> float:
    """Infinity for a line cut short by a crash."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
