"""The metrics that a training has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

StepNumbers = list[tuple[int, float, float, float]]
"""The values of each step that must repeat bit for bit, so without times: step, loss, learning rate, norm."""


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl; the training may still run, or may have been killed in the middle of a line."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()]


def step_numbers(out: Path) -> StepNumbers:
    return [(record["step"], record["loss"], record["lr"], record["grad_norm"]) for record in read_metrics(out)]
