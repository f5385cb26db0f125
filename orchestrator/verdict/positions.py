"""The positions of the ranks of an attempt, and the ranks that the others wait for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.node.ranks.stacks import folded_calls, ranks_text
from orchestrator.portable.names.hostlist import fold

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import GroupBody, RankBody

STOPPED, IN_KERNEL = ("T", "t"), "D"
STARVED = "waits for a CPU most of the time"
LOCKED = "a call holds its interpreter lock"
SAME_SIZES = ("all_reduce", "broadcast")
"""Collectives whose tensors have the same sizes on every rank."""
BETWEEN_STEPS = ("init", "eval", "save")


def positions(ranks: Mapping[int, RankBody], node_of: Mapping[int, str]) -> Iterator[str]:
    """One line about the ranks that hold up the others, if any do, one with the next step, and one about the calls of all ranks."""
    if suspect := suspects(ranks, node_of):
        yield suspect
    if remedy := stopped_remedy(ranks, node_of):
        yield f"next: {remedy}"
    if calls := folded_calls({rank: body["call"] for rank, body in ranks.items() if body["call"]}):
        yield calls


def suspects(ranks: Mapping[int, RankBody], node_of: Mapping[int, str]) -> str:
    """The ranks that the others wait for, and what they do instead; empty if no rank waits, or this does not show it."""

    def named(numbers: Sequence[int]) -> str:
        return f"{ranks_text(numbers)} on {fold(dict.fromkeys(node_of[rank] for rank in sorted(numbers)))}"

    if stopped := _stopped(ranks):
        return f"{named(stopped)}: stopped by a signal (state T)"
    silent = [rank for rank, body in ranks.items() if not body["answers"]]
    if silent:
        if all(ranks[rank]["state"] == IN_KERNEL for rank in silent):
            cause = "waits in the kernel (state D), for a disk or a driver"
        else:  # a call that computes waits for a CPU, too, on a crowded node
            starved = any("cpu_wait_s" in ranks[rank] for rank in silent)
            cause = f"{STARVED}, or {LOCKED}" if starved else LOCKED
        verb = "does" if len(silent) == 1 else "do"
        return f"{named(silent)}: {verb} not answer, {cause}"
    # by the process groups: ranks that are late in one and wait in none, before ranks that wait in another
    waits_anywhere = {rank for rank, body in ranks.items() if any(map(_is_waiting, body["groups"].values()))}
    found = []
    for group in sorted({name for body in ranks.values() for name in body["groups"]}):
        members = {rank: body["groups"][group] for rank, body in ranks.items() if group in body["groups"]}
        waiting = {rank: body for rank, body in members.items() if _is_waiting(body)}
        if waiting:
            number = min(body["completed"] for body in waiting.values()) + 1
            late = [rank for rank, body in members.items() if body["enqueued"] < number]
            first_late = [rank for rank in late if rank not in waits_anywhere]
            text = _late(ranks, first_late or late, waiting, named) if late else _mismatch(waiting, number, named)
            found.append((not first_late, not late, f"{text} (number {number} of group {group})"))
    return min(found)[2] if found else ""


def stopped_remedy(ranks: Mapping[int, RankBody], node_of: Mapping[int, str]) -> str:
    """How to continue the ranks that a signal has stopped, or to end them; empty if there is none."""
    stopped = _stopped(ranks)
    pids: dict[str, list[int]] = {}
    for rank in stopped:
        pids.setdefault(node_of[rank], []).append(ranks[rank]["pid"])
    commands = " and ".join(f"`kill -CONT {' '.join(map(str, of_node))}` on {node}" for node, of_node in pids.items())
    verb = "continues" if len(pids) == 1 else "continue"
    return f"{commands} {verb} {ranks_text(stopped)}, `orch stop` ends the run" if stopped else ""


def _stopped(ranks: Mapping[int, RankBody]) -> list[int]:
    return sorted(rank for rank, body in ranks.items() if body["state"] in STOPPED)


def _is_waiting(group: GroupBody) -> bool:
    return group["enqueued"] > group["completed"]


def _late(
    ranks: Mapping[int, RankBody],
    late: Sequence[int],
    waiting: Mapping[int, GroupBody],
    named: Callable[[Sequence[int]], str],
) -> str:
    """The ranks that have not entered a collective, and where they are instead."""
    names = {body["waits_for"] for body in waiting.values() if "waits_for" in body}
    activities = set()
    for body in (ranks[rank] for rank in late):
        call = body["call"] and f"at {body['call']}"
        if body["phase"] in BETWEEN_STEPS:
            call = f"in phase {body['phase']}, at {body['call']}"
        elif body["loads_data"]:
            call = f"in the data loader, at {body['call']}"
        # other processes may keep it from running
        activities.add(", ".join(filter(None, (call, STARVED if "cpu_wait_s" in body else ""))))
    doing = f": {', '.join(sorted(activities))}" if activities != {""} else ""
    verb = "wait" if len(waiting) > 1 else "waits"
    collective = " or ".join(sorted(names)) or "the collective"
    return f"{named(late)} not in {collective}, for which {ranks_text(list(waiting))} {verb}{doing}"


def _mismatch(waiting: Mapping[int, GroupBody], number: int, named: Callable[[Sequence[int]], str]) -> str:
    """The ranks that called another collective than most; or the ranks that all wait in the same one."""
    ranks_in: dict[str, list[int]] = {}
    for rank, body in waiting.items():
        if body["completed"] + 1 == number and "waits_for" in body:
            operation, _, sizes = body["waits_for"].partition(" ")
            ranks_in.setdefault(f"{operation} {sizes}" if operation in SAME_SIZES else operation, []).append(rank)
    if len(ranks_in) > 1:
        rarest_first = sorted(ranks_in.items(), key=lambda item: (len(item[1]), item[1]))
        calls = ", ".join(f"{named(numbers)} {operation}" for operation, numbers in rarest_first)
        return f"the ranks called different collectives: {calls}"
    operation = next(iter(ranks_in), "the same collective")
    return f"{ranks_text(list(waiting))} all wait in {operation}: look at the network between their nodes, and at their cards"
