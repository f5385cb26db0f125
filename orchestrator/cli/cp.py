"""`orch cp`: copy files of a run from its nodes to this machine."""

from __future__ import annotations

from pathlib import Path

from orchestrator.actions.copy import copy
from orchestrator.cli.console import ProgressLine, inform, print_text, size_text, warn
from orchestrator.errors import UsageError


def copy_files(source: str, destination: Path, nodes: str | None) -> int:
    """
    Copy RUN:PATH to a folder, and print the names of the copies.

    Raises:
        UsageError: the source is not RUN:PATH, no node has the path, the run has no such node, or a target exists.
        NodesError: nodes could not be read.
    """
    run, colon, path = source.partition(":")
    if not colon or not path:
        raise UsageError(f"{source!r} is not RUN:PATH", hint="as in orch cp latest:checkpoints results")
    with ProgressLine() as progress:
        copies = copy(run or "latest", path, destination, nodes, on_progress=progress.update)
    for copied in copies:
        for name in copied.left_out:
            reason = f"an absolute link, one that leads out of {copied.source}, or a special file"
            warn(f"{copied.node}: {name} is not copied: {reason}")
        inform(
            f"{copied.node}: {copied.source}: {copied.files} file{'' if copied.files == 1 else 's'}, {size_text(copied.size_bytes)}"
        )
        print_text(f"{copied.target}\n")
    return 0
