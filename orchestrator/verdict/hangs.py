"""Name the ranks that caused a hang, by their progress and their stack traces. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.ranks.stacks import folded_calls
from orchestrator.portable.findings import Finding, Severity
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import RankExit
from orchestrator.verdict.positions import stopped_remedy, suspects

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import RankBody

HANG = "hang"
PHASES = ("init", "eval", "save", "saved", "step", "done")  # the order within one step
MAX_CALLS_SHOWN = 3


def diagnose_hang(failure: RankExit, nodes: Sequence[NodeObservation]) -> RankExit:
    """Add the suspected ranks and the folders of the stack traces to the error of a hang; other failures are unchanged."""
    if failure.kind != HANG:
        return failure
    parts = [failure.error, positions_without_progress(nodes) or _suspects(nodes)]
    with_stacks = [node for node in nodes if node.stacks]
    for parent in sorted({posixpath.dirname(node.folder) for node in with_stacks}):  # one on a shared file system
        names = fold(node.node for node in with_stacks if posixpath.dirname(node.folder) == parent)
        parts.append(f"stacks: {parent}/{names}/stacks")
    return replace(failure, error="; ".join(filter(None, parts)))


def positions_without_progress(nodes: Sequence[NodeObservation]) -> str:
    """The ranks that the others wait for, and the calls of all ranks, if every node with ranks reports that they make no progress."""
    bodies, node_of = _ranks_without_progress(nodes)
    calls = folded_calls({rank: body["call"] for rank, body in bodies.items() if body["call"]})
    return "; ".join(filter(None, (suspects(bodies, node_of), ras_facts(nodes), calls)))


def ras_facts(nodes: Sequence[NodeObservation]) -> str:
    """The evidence of NCCL's RAS about the ranks; empty if it was not queried, or has not answered."""
    answers = [node.hang["ras"] for node in nodes if node.hang and "ras" in node.hang]
    return "; ".join(f"NCCL's RAS: {', '.join(answer['facts'])}" for answer in answers if answer["facts"])


def hang_findings(nodes: Sequence[NodeObservation]) -> list[Finding]:
    """The finding that the ranks of a running attempt make no progress."""
    running = [node for node in nodes if node.finished is None]
    evidence = positions_without_progress(running)
    if not evidence:
        return []
    bodies, node_of = _ranks_without_progress(running)
    if len(bodies) == 1:
        text, outcome, stacks = "the rank makes no progress", "it continues, or ends", "its stacks are"
    else:
        text, outcome, stacks = "the ranks make no progress", "they continue, or end", "their stacks are"
    next_step = stopped_remedy(bodies, node_of) or f"{outcome} when a collective times out"
    remedy = f"{next_step}; {stacks} in stacks/*.no-progress.txt of the node's folder"
    return [Finding(Severity.WARN, "no-progress", text, tuple(dict.fromkeys(node_of.values())), evidence, remedy)]


def _ranks_without_progress(nodes: Sequence[NodeObservation]) -> tuple[dict[int, RankBody], dict[int, str]]:
    """The positions of the ranks, and the node of each; empty unless every node with ranks reports that they make no progress."""
    hangs = {node.node: node.hang for node in nodes if node.ranks}
    if any(hang is None for hang in hangs.values()):
        return {}, {}
    found = [(int(rank), name, body) for name, hang in hangs.items() if hang for rank, body in hang["ranks"].items()]
    return {rank: body for rank, _, body in found}, {rank: name for rank, name, _ in found}


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


def _reached(progress: Mapping[str, object]) -> tuple[int, int]:
    """The step and the phase within it, comparable."""
    step, phase = progress.get("step"), progress.get("phase")
    return step if isinstance(step, int) else 0, PHASES.index(str(phase)) if phase in PHASES else 0


def _rank_list(ranks: Iterable[int]) -> str:
    return f"rank {fold(map(str, sorted(ranks)))}"
