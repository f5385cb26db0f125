"""Name the ranks that caused a hang, by their progress and their stack traces. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.findings import Finding, Severity
from orchestrator.names.hostlist import fold
from orchestrator.node.stacks import folded_calls
from orchestrator.run import RankExit
from orchestrator.verdict.positions import suspects

HANG = "hang"
PHASES = ("init", "eval", "save", "saved", "step", "done")  # the order within one step
MAX_CALLS_SHOWN = 3


def diagnose_hang(failure: RankExit, nodes: Sequence[NodeObservation]) -> RankExit:
    """Add the suspected ranks and the folders of the stack traces to the error of a hang; other failures are unchanged."""
    if failure.kind != HANG:
        return failure
    reported = positions_without_progress(nodes)
    parts = [failure.error, *([reported] if reported else [_suspects(nodes)]), *_stack_folders(nodes)]
    return replace(failure, error="; ".join(part for part in parts if part))


def positions_without_progress(nodes: Sequence[NodeObservation]) -> str:
    """The ranks that the others wait for, and the calls of all ranks, if every node with ranks reports that they make no progress."""
    with_ranks = [node for node in nodes if node.ranks]
    bodies = {int(rank): body for node in with_ranks if node.hang for rank, body in node.hang["ranks"].items()}
    if not bodies or any(node.hang is None for node in with_ranks):
        return ""
    node_of = {int(rank): node.node for node in with_ranks if node.hang for rank in node.hang["ranks"]}
    calls = folded_calls({rank: body["call"] for rank, body in bodies.items() if body["call"]})
    return "; ".join(filter(None, (suspects(bodies, node_of), calls)))


def hang_findings(nodes: Sequence[NodeObservation]) -> list[Finding]:
    """The finding that the ranks of a running attempt make no progress."""
    text = positions_without_progress([node for node in nodes if node.finished is None])
    names = tuple(node.node for node in nodes if node.hang and node.finished is None)
    remedy = "they continue, or end when a collective times out; the stacks are in stacks/*.no-progress.txt of each node's folder"
    return (
        [Finding(Severity.WARN, "no-progress", "the ranks make no progress", names, evidence=text, remedy=remedy)]
        if text
        else []
    )


def _suspects(nodes: Sequence[NodeObservation]) -> str:
    """
    The ranks that are behind; else those without stack traces; else the innermost call of each rank.

    Empty without ranks, or if each rank got equally far and none left a stack trace.
    """
    node_of = {rank: node.node for node in nodes for rank in node.ranks}
    innermost_call = {rank: call for node in nodes for rank, call in node.stacks.items()}
    reached = {rank: _reached(progress) for node in nodes for rank, progress in node.progress.items()}
    behind = [rank for rank, point in reached.items() if point < max(reached.values())]
    without_stacks = set(node_of) - set(innermost_call)
    if behind:
        return f"{_rank_list(behind)} on {fold(node_of[rank] for rank in behind)} did not get as far as the others"
    if innermost_call and without_stacks:
        hosts = fold(node_of[rank] for rank in sorted(without_stacks))
        return f"{_rank_list(without_stacks)} on {hosts} left no stacks: it is stopped, or its node hangs"
    ranks_at = {
        call: [rank for rank in innermost_call if innermost_call[rank] == call] for call in innermost_call.values()
    }
    rarest = sorted(ranks_at, key=lambda call: len(ranks_at[call]))[:MAX_CALLS_SHOWN]
    return ", ".join(f"{_rank_list(ranks_at[call])} stood at {call}" for call in rarest)


def _stack_folders(nodes: Sequence[NodeObservation]) -> Iterable[str]:
    """The folders of the stack traces, folded: on a shared file system the nodes' folders have one parent."""
    with_stacks = [node for node in nodes if node.stacks]
    for parent in sorted({posixpath.dirname(node.folder) for node in with_stacks}):
        names = fold(node.node for node in with_stacks if posixpath.dirname(node.folder) == parent)
        yield f"stacks: {parent}/{names}/stacks"


def _reached(progress: Mapping[str, object]) -> tuple[int, int]:
    """The step and the phase within it, comparable."""
    step, phase = progress.get("step"), progress.get("phase")
    return step if isinstance(step, int) else 0, PHASES.index(str(phase)) if phase in PHASES else 0


def _rank_list(ranks: Iterable[int]) -> str:
    return f"rank {fold(map(str, sorted(ranks)))}"
