"""The ranks that the others of a hung run waited for, by the progress and the stacks that they left. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.names.hostlist import fold
from orchestrator.run import RankExit

HANG = "hang"
PHASES = ("init", "eval", "save", "saved", "step", "done")  # the order within one step
SHOWN_PLACES = 3


def diagnose_hang(found: RankExit, nodes: Sequence[NodeObservation]) -> RankExit:
    """Add to a hang the ranks to blame, as far as that is known, and the folders of the stacks."""
    if found.kind != HANG:
        return found
    parts = [found.error, _suspects(nodes), *_folders(nodes)]
    return replace(found, error="; ".join(part for part in parts if part))


def _suspects(nodes: Sequence[NodeObservation]) -> str:
    """The ranks that are behind; else those that left no stacks; else the innermost call of each. Empty if nothing is known."""
    node_of = {rank: node.node for node in nodes for rank in node.ranks}
    stacks = {rank: place for node in nodes for rank, place in node.stacks.items()}
    reached = {rank: _reached(progress) for node in nodes for rank, progress in node.progress.items()}
    behind = [rank for rank, place in reached.items() if place < max(reached.values())]
    silent = set(node_of) - set(stacks)
    if behind:
        return f"{_ranks(behind)} on {fold(node_of[rank] for rank in behind)} did not get as far as the others"
    if stacks and silent:
        where = fold(node_of[rank] for rank in sorted(silent))
        return f"{_ranks(silent)} on {where} left no stacks: it is stopped, or its node hangs"
    at = {place: [rank for rank in stacks if stacks[rank] == place] for place in stacks.values()}
    fewest = sorted(at, key=lambda place: len(at[place]))[:SHOWN_PLACES]
    return ", ".join(f"{_ranks(at[place])} stood at {place}" for place in fewest)


def _folders(nodes: Sequence[NodeObservation]) -> Iterable[str]:
    """The folders of the stacks, folded: on a shared file system the nodes' folders have one parent."""
    having = [node for node in nodes if node.stacks]
    for parent in sorted({posixpath.dirname(node.folder) for node in having}):
        names = fold(node.node for node in having if posixpath.dirname(node.folder) == parent)
        yield f"stacks: {parent}/{names}/stacks"


def _reached(progress: Mapping[str, object]) -> tuple[int, int]:
    step, phase = progress.get("step"), progress.get("phase")
    return step if isinstance(step, int) else 0, PHASES.index(str(phase)) if phase in PHASES else 0


def _ranks(numbers: Iterable[int]) -> str:
    return f"rank {fold(map(str, sorted(numbers)))}"
