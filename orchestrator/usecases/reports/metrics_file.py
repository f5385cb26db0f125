"""metrics.jsonl of the shared trainer, which rank 0 writes: where it is, its parts, and its records, one per step."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from orchestrator.endpoint.files import FoundFiles
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import trainer_setting

PART_BYTES = 1 << 22


def metrics_path(plan: LaunchPlan) -> str | None:
    """The path of metrics.jsonl below the run's folder; None for another program, or if `out` is elsewhere."""
    out = trainer_setting(plan.program, plan.config, "out") or "checkpoints"
    if plan.program.kind != "trainer" or not isinstance(out, str) or out.startswith(("/", "~")):
        return None
    return posixpath.join(out, "metrics.jsonl")


def find_metrics(launcher: Launcher, plan: LaunchPlan) -> tuple[AttemptFolder, FoundFiles] | None:
    """The file on the node of rank 0; None if there is none."""
    path = metrics_path(plan)
    if path is None:
        return None
    for folder in launcher.attempt_folders(launcher.attempt(), None if plan.by_count else {plan.head.name}):
        for found in folder.endpoint.list_files(folder.attempt_dir, folder.nodes, path, cwd=plan.program.cwd or ""):
            return folder, found
    return None


def read_part(folder: AttemptFolder, file: FoundFiles, offset: int, size: int) -> bytes:
    return folder.endpoint.read_file(folder.attempt_dir, file.root, "", offset=offset, size=size)


def read_metrics(launcher: Launcher, plan: LaunchPlan) -> list[dict[str, Any]]:
    """
    All records, in the order of their steps; none before the first step, or if the file is gone.

    Raises:
        NodesError, NodeError: the node of rank 0 cannot be read.
    """
    found = find_metrics(launcher, plan)
    if found is None:
        return []
    folder, file = found
    parts, offset = [], 0
    while part := read_part(folder, file, offset, PART_BYTES):
        parts.append(part)
        offset += len(part)
    return records_of(b"".join(parts).split(b"\n"))


def records_of(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The records of these lines; a damaged one is left out, and the last one while it is written."""
    try:  # all at once takes half as long
        found = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except ValueError:
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]
