"""
The evidence about a hang in the answer of NCCL's RAS, as texts. Pure.

The form is that of `set format json` (NCCL 2.28.7 and newer): https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

from orchestrator.node.ranks.stacks import ranks_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

    Json = Mapping[str, Any]

MOST_FACTS = 6
MOST_PROCESSES = 4
HARMLESS = (0, 7)  # ncclSuccess, ncclInProgress
ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    8: "timeout",
}


def facts(answer: Json, pids: Collection[int], world_size: int) -> List[str]:
    """
    The ranks that are missing, have failed or are behind; that there are none; nothing if no process of `pids` is in the answer.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the answer is not of this form.
    """
    communicators = sorted(answer["communicators"], key=lambda communicator: -int(communicator["size"]))
    members = [rank for communicator in communicators for rank in (*communicator["ranks"], *_missing(communicator))]
    if not {rank["pid"] for rank in members} & set(pids):
        return []
    named: Set[Tuple[str, int]] = set()
    found: List[str] = []
    for communicator in communicators:
        found.extend(_facts(communicator, world_size, named))
    if len(found) > MOST_FACTS:
        found = [*found[:MOST_FACTS], f"{len(found) - MOST_FACTS} more"]
    return found or ["all ranks answer, and have launched the same numbers of collectives"]


def _facts(communicator: Json, world_size: int, named: Set[Tuple[str, int]]) -> Iterator[str]:
    size = int(communicator["size"])
    suffix = "" if size == world_size else f" of a communicator of {size}"
    new = [rank for rank in _missing(communicator) if (rank["host"], rank["pid"]) not in named]
    named.update((rank["host"], rank["pid"]) for rank in new)
    for state in ("dead", "does not answer", "has left the communicator"):
        ranks = [rank for rank in new if _state(rank) == state]
        if ranks:
            text = {"dead": "considered dead"}.get(state, state if len(ranks) == 1 else _plural(state))
            yield f"{_ranks(ranks)}{suffix} {text} ({_processes(ranks)})"
    failed: Dict[int, List[Json]] = {}
    for rank in communicator["ranks"]:
        status = rank["status"]
        for code in {status["init_state"], status["async_error"]} - set(HARMLESS):
            failed.setdefault(code, []).append(rank)
    for code, ranks in sorted(failed.items()):
        yield f"{_ranks(ranks)}{suffix}: {ERRORS.get(code, f'error {code}')} ({_processes(ranks)})"
    yield from _behind(communicator["ranks"], suffix)


def _behind(ranks: Sequence[Json], suffix: str) -> Iterator[str]:
    """The kinds of collectives of which not all ranks have launched equally many."""
    for kind in ranks[0]["collective_counts"] if ranks else ():
        launched: Dict[int, List[Json]] = {}
        for rank in ranks:
            launched.setdefault(rank["collective_counts"][kind], []).append(rank)
        if len(launched) > 1:
            lowest, highest = min(launched), max(launched)
            between = f" ({len(launched) - 2} other counts)" if len(launched) > 2 else ""  # noqa: PLR2004
            behind, ahead = _ranks(launched[lowest]), _ranks(launched[highest])
            verb = "has" if len(launched[lowest]) == 1 else "have"
            yield f"{kind}: {behind}{suffix} {verb} launched {lowest}, {ahead} {highest}{between}"


def _missing(communicator: Json) -> Sequence[Json]:
    return communicator.get("missing_ranks") or ()


def _state(rank: Json) -> str:
    if rank["status"]["considered_dead"]:
        return "dead"
    return "does not answer" if rank["status"]["unresponsive"] else "has left the communicator"


def _plural(state: str) -> str:
    return state.replace("does ", "do ").replace("has ", "have ")


def _ranks(ranks: Iterable[Json]) -> str:
    return ranks_text(sorted(int(rank["rank"]) for rank in ranks))


def _processes(ranks: Sequence[Json]) -> str:
    shown = ", ".join(f"process {int(rank['pid'])} on {rank['host']}" for rank in ranks[:MOST_PROCESSES])
    return shown + (f" and {len(ranks) - MOST_PROCESSES} more" if len(ranks) > MOST_PROCESSES else "")
