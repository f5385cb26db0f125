"""The loss curve as a PNG file."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any, Mapping, Sequence


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
