"""The ranks that the others wait for, by where each rank says it is."""

from __future__ import annotations

import pytest

from orchestrator.node.run.agent_files import GroupBody, RankBody
from orchestrator.verdict.positions import positions, suspects

WAITS, READS = "all_reduce, from my/train.py:81 in step", "my/data.py:12 in read"
NODE_OF = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


def _group(enqueued: int, completed: int, waits_for: str = "") -> dict[str, GroupBody]:
    group: GroupBody = {"enqueued": enqueued, "completed": completed}
    return {"0": {**group, "waits_for": waits_for} if waits_for else group}


def _rank(
    groups: dict[str, GroupBody],
    call: str = WAITS,
    *,
    state: str = "S",
    answers: bool = True,
    phase: str = "step",
    loads_data: bool = False,
) -> RankBody:
    return {
        "pid": 1,
        "state": state,
        "answers": answers,
        "phase": phase,
        "step": 9,
        "call": call,
        "loads_data": loads_data,
        "groups": groups,
        "memory": None,
        "stacks": "",
    }


WAITING = _rank(_group(21, 20, "all_reduce [[4]]"))
# with several collectives enqueued, as DDP does with its buckets
AHEAD = _rank(_group(24, 20, "all_reduce [[4]]"))
ARRIVES = _group(20, 20)


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        (_rank(ARRIVES, READS), f"at {READS} (number 21 of group 0)"),
        (_rank(ARRIVES, READS, loads_data=True), f"in the data loader, at {READS} (number 21 of group 0)"),
        (_rank(ARRIVES, READS, phase="save"), f"in phase save, at {READS} (number 21 of group 0)"),
    ],
)
def test_rank_that_has_not_entered_the_collective_of_the_others(third: RankBody, expected: str) -> None:
    found = suspects({0: WAITING, 1: AHEAD, 2: third, 3: WAITING}, NODE_OF)
    assert found == f"rank 2 on n1 not in all_reduce [[4]], for which ranks 0-1,3 wait: {expected}"


def test_rank_that_other_processes_keep_from_running() -> None:
    late = _rank(ARRIVES, READS)
    late["cpu_wait_s"] = 20.0
    assert suspects({0: WAITING, 1: late}, NODE_OF) == (
        f"rank 1 on n0 not in all_reduce [[4]], for which rank 0 waits: at {READS}, waits for a CPU most of the time (number 21 of group 0)"
    )


def test_silent_rank_on_a_crowded_node_may_hold_its_interpreter_lock_as_well() -> None:
    locked, either = _rank({}, "", answers=False, state="R"), _rank({}, "", answers=False, state="R")
    either["cpu_wait_s"] = 20.0
    lock = "a call holds its interpreter lock"
    both = f"waits for a CPU most of the time, or {lock}"
    assert suspects({0: WAITING, 1: locked}, NODE_OF) == f"rank 1 on n0: does not answer, {lock}"
    assert suspects({0: WAITING, 1: either}, NODE_OF) == f"rank 1 on n0: does not answer, {both}"
    assert suspects({0: WAITING, 1: either, 2: locked}, NODE_OF) == f"ranks 1-2 on n[0-1]: do not answer, {both}"


def test_rank_that_called_another_collective() -> None:
    differing = _rank(_group(21, 20, "broadcast [[4]]"))
    found = suspects({0: WAITING, 1: WAITING, 2: WAITING, 3: differing}, NODE_OF)
    assert found == (
        "the ranks called different collectives: rank 3 on n1 broadcast [[4]], ranks 0-2 on n[0-1] all_reduce [[4]]"
        " (number 21 of group 0)"
    )


def test_tensors_of_other_sizes_differ_for_a_reduction_only() -> None:
    differing = _rank(_group(21, 20, "all_reduce [[5]]"))
    assert "rank 3 on n1 all_reduce [[5]]" in suspects({0: WAITING, 1: WAITING, 2: WAITING, 3: differing}, NODE_OF)
    uneven = [_rank(_group(21, 20, f"all_to_all [[{size}]]")) for size in range(4)]
    assert suspects(dict(enumerate(uneven)), NODE_OF).startswith(
        "ranks 0-3 all wait in all_to_all: look at the network"
    )


def test_rank_that_is_stopped_or_does_not_answer() -> None:
    stopped, in_kernel = (_rank({}, "", state=state, answers=False) for state in "TD")
    silent = _rank({}, "", answers=False)
    assert suspects({0: WAITING, 2: stopped}, NODE_OF) == "rank 2 on n1: stopped by a signal (state T)"
    assert list(positions({0: WAITING, 2: stopped, 3: stopped}, NODE_OF))[1] == (
        f"next: `kill -CONT {stopped['pid']} {stopped['pid']}` on n1 continues ranks 2-3, `orch stop` ends the run"
    )
    assert suspects({0: WAITING, 1: silent, 2: silent}, NODE_OF).startswith(
        "ranks 1-2 on n[0-1]: do not answer, a call"
    )
    assert suspects({0: WAITING, 1: in_kernel}, NODE_OF).startswith(
        "rank 1 on n0: does not answer, waits in the kernel"
    )
    assert suspects({0: WAITING, 1: silent}, NODE_OF).endswith("a call holds its interpreter lock")


def test_rank_that_waits_in_another_group_is_late_because_of_a_third_one() -> None:
    """Ranks 0 and 1 wait in their pair's group for each other; 1 is in the group of all, for which 2 is late."""
    pair: dict[str, GroupBody] = {"1": {"enqueued": 5, "completed": 4, "waits_for": "all_gather [[1]]"}}
    first = _rank({**ARRIVES, **pair})
    second = _rank({**_group(21, 20, "all_reduce [[4]]"), "1": {"enqueued": 4, "completed": 4}})
    found = suspects({0: first, 1: second, 2: _rank(ARRIVES, READS)}, NODE_OF)
    assert found.startswith("rank 2 on n1 not in all_reduce [[4]], for which rank 1 waits: at")


def test_positions_are_folded_by_call_and_name_nobody_while_no_rank_waits() -> None:
    computes = _rank(ARRIVES, READS)
    assert list(positions({0: computes, 1: computes, 2: _rank(ARRIVES)}, NODE_OF)) == [
        f"rank 2 at {WAITS}; ranks 0-1 at {READS}"
    ]
    assert list(positions({}, {})) == []
