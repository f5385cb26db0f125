"""Add the last output of the rank that failed first to the verdict: whoever records the end of a run records these lines, too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.errors import NodeError
from orchestrator.node.run.run_folder import output_stem

if TYPE_CHECKING:
    from orchestrator.launchers.base import AttemptFolder, Launcher
    from orchestrator.run import RankExit
    from orchestrator.verdict.judge import Verdict

LAST_LINES, LAST_BYTES = 10, 8192


def with_last_lines(verdict: Verdict, launcher: Launcher, attempt: int) -> Verdict:
    """The verdict with the last lines of the failed rank, or of the program on that node; without them if the node cannot be read."""
    failure = verdict.exit
    if failure is None or (failure.rank is None and not failure.per_node):
        return verdict
    for folder in launcher.attempt_folders(attempt, {failure.node}, connect=False):
        if folder.nodes is None or failure.node in folder.nodes:
            try:
                return replace(verdict, exit=replace(failure, lines=_last_lines(folder, failure)))
            except NodeError:
                return verdict
    return verdict


def _last_lines(folder: AttemptFolder, failure: RankExit) -> tuple[str, ...]:
    """The last lines of standard error, or of standard output if standard error is empty."""
    endpoint, nodes = folder.endpoint, [failure.node]
    sizes = endpoint.files(folder.attempt_dir, nodes)
    for stream in ("err", "out"):
        file = f"{failure.node}/{output_stem(failure.rank)}.{stream}"
        if size := sizes.get(file, 0):
            chunks = endpoint.read(folder.attempt_dir, {file: (max(0, size - LAST_BYTES), size)})
            text = b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace")
            return tuple(text.splitlines()[-LAST_LINES:])
    return ()
