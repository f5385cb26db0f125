"""The size of the newest checkpoint in a folder, as an estimate of the next one."""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional

    from orchestrator.node.probe.source import Source

# The names of the shared trainer, of Hugging Face and of DeepSpeed.
CHECKPOINT = re.compile(r"(?:step_|checkpoint-|global_step)([0-9]{1,12})\Z")
RUN_TIME = re.compile(r"-([0-9]{8}-[0-9]{6})-[0-9a-f]{4}\Z")  # in a run's id
SCAN_S = 1.0  # below DISK_S of collect.py: a checkpoint of thousands of files on a busy server is no fault of the disk
MOST_RUNS = 8  # that are looked at: a workdir may have thousands


def newest_checkpoint_bytes(source: Source, use: str, path: str) -> Optional[int]:
    """The bytes of the newest checkpoint in a folder of checkpoints, or of the newest runs in a workdir; None if there is none, or not in time."""
    for folder in [path] if use == "out" else checkpoint_folders(source, path):
        found = ((CHECKPOINT.match(name), name) for name in source.names(folder))
        steps = {int(match.group(1)): name for match, name in found if match}
        if steps:
            try:
                return folder_bytes(source.path(f"{folder}/{steps[max(steps)]}"), time.monotonic() + SCAN_S)
            except OSError:  # TimeoutError is one; or the checkpoint has just been removed
                return None
    return None


def checkpoint_folders(source: Source, workdir: str) -> Iterator[str]:
    """The folders of checkpoints of a workdir's newest runs."""
    found = ((RUN_TIME.search(name), name) for name in source.names(f"{workdir}/runs"))
    newest = sorted(((match.group(1), name) for match, name in found if match), reverse=True)[:MOST_RUNS]
    return (f"{workdir}/runs/{name}/checkpoints" for _, name in newest)


def folder_bytes(folder: str, deadline: float) -> int:
    """The bytes of all files below a folder; TimeoutError at the deadline."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() >= deadline:
                raise TimeoutError
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(entry.path, deadline)
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
