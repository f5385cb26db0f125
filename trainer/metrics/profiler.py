"""Traces of chosen steps by torch.profiler, and a snapshot of a card's memory when it is exhausted."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Callable

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.runtime.group import Group

FOLDER = "profile"


class StepProfiler:
    """Records the steps of `profile` on the ranks of `profile_ranks`, into one trace per rank."""

    def __init__(self, group: Group, config: TrainConfig, out: Path) -> None:
        self.first, self.last = config.profiled_steps
        self.steps, self.device = config.steps, group.accelerator.name
        rank = group.rank.global_rank
        self.is_chosen = rank in config.profiled_ranks
        self.path = files_of(group, out) / f"rank-{rank}-steps-{self.first}-{self.last}.json.gz"
        self._recording: Any = None  # torch.profiler.profile

    def before_step(self, step: int) -> None:
        """Start at the first of the steps, or after a resume between them."""
        if self.is_chosen and self._recording is None and self.first <= step <= self.last:
            profiler: Any = importlib.import_module("torch.profiler")
            activities = [profiler.ProfilerActivity.CPU]
            if self.device == "cuda":
                activities.append(profiler.ProfilerActivity.CUDA)
            self._recording = profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
            self._recording.__enter__()

    def after_step(self, step: int) -> None:
        """Write the trace after the last of the steps."""
        if self._recording is None or step < min(self.last, self.steps):
            return
        recording, self._recording, self.is_chosen = self._recording, None, False
        recording.__exit__(None, None, None)
        _write_private(self.path, lambda: recording.export_chrome_trace(str(self.path)), "the trace of the profiler")


def watch_memory(group: Group, out: Path) -> None:
    """Write a snapshot of the allocator when memory of a CUDA card is exhausted, before the error is raised."""
    path = files_of(group, out) / f"rank-{group.rank.global_rank}-memory.pickle"

    def write() -> None:
        if not path.exists():  # the program may catch the error and continue
            _write_private(path, lambda: group.accelerator.write_memory_snapshot(str(path)), "the memory snapshot")

    group.accelerator.on_out_of_memory(write)


def files_of(group: Group, out: Path) -> Path:
    """The folder of this rank's files: in the node's folder of the attempt under orch, else in `out`."""
    progress = group.rank.progress_dir
    return (progress.parent if progress else out) / FOLDER


def _write_private(path: Path, write: Callable[[], object], name: str) -> None:
    """Have `write` fill a file that only the user can read; report where it is. A failure costs only the file."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        write()
    except (OSError, RuntimeError) as exc:
        log_line(f"WARNING: {name} is not written: {exc}")
    else:
        log_line(f"{name} is in {path}")
