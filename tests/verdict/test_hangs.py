"""The diagnosis of a hang: the ranks that are named, and the stack traces that are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.agent.failure import failure_of
from orchestrator.node.ranks.stacks import innermost_call, innermost_calls
from orchestrator.run import RankExit
from orchestrator.verdict.hangs import diagnose_hang, hang_findings, positions_without_progress

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import HangBody, RankBody

WAITS, READS = "trainer/runtime/group.py:139 in end", "my/data.py:7 in __getitem__"
TIMEOUT = RankExit("n0", 0, 1, None, "Timed out", kind="hang")


def _node(name: str, steps: dict[int, tuple[int, str]], stacks: dict[int, str]) -> NodeObservation:
    progress = {rank: {"step": step, "phase": phase} for rank, (step, phase) in steps.items()}
    return NodeObservation(
        name,
        None,
        alive=False,
        same_boot=True,
        finished=None,
        first_failure=None,
        ranks=dict.fromkeys(steps, "exited"),
        progress=progress,
        stacks=stacks,
        folder=f"/w/runs/r/attempt-1/{name}",
    )


def _error_parts(*nodes: NodeObservation) -> list[str]:
    error = diagnose_hang(TIMEOUT, nodes).error
    assert error is not None
    return error.split("; ")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((12, "step"), (11, "step")),
        ((12, "save"), (12, "eval")),
        ((12, "step"), (12, "save")),
        ((0, "step"), (0, "init")),
    ],
)
def test_rank_that_did_not_get_as_far_is_named(first: tuple[int, str], second: tuple[int, str]) -> None:
    nodes = [_node("n0", {0: first, 1: first}, {0: WAITS, 1: WAITS}), _node("n1", {2: second, 3: first}, {2: WAITS})]
    assert _error_parts(*nodes)[1] == "rank 2 on n1 did not get as far as the others"


def test_ranks_without_stacks_are_named_if_all_got_equally_far() -> None:
    at = (12, "step")
    nodes = [_node("n0", {0: at, 1: at}, {0: WAITS, 1: WAITS}), _node("n1", {2: at, 3: at}, {})]
    assert _error_parts(*nodes)[1] == "rank [2-3] on n1 left no stacks: it is stopped, or its node hangs"


def test_innermost_calls_are_shown_rarest_first_if_all_left_stacks() -> None:
    at = (12, "step")
    nodes = [_node("n0", {0: at, 1: at}, {0: WAITS, 1: READS}), _node("n1", {2: at}, {2: WAITS})]
    assert _error_parts(*nodes)[1] == f"rank 1 stood at {READS}, rank [0,2] stood at {WAITS}"


def test_folders_of_the_stacks_are_shown() -> None:
    nodes = [_node(f"n{number}", {number: (1, "step")}, {number: WAITS}) for number in range(3)]
    assert _error_parts(*nodes)[0] == "Timed out"
    assert _error_parts(*nodes)[-1] == "stacks: /w/runs/r/attempt-1/n[0-2]/stacks"


def test_other_failures_stay_as_they_are() -> None:
    failure = RankExit("n0", 0, 1, None, "disk full", kind="storage")
    assert diagnose_hang(failure, [_node("n0", {0: (1, "step")}, {0: WAITS})]) == failure


MAIN = 'Timeout (0:00:07)!\nThread 0x1 (most recent call first):\n  File "/a/notice.py", line 34 in _wait\n\n'


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        (['"/usr/lib/python3.11/site-packages/torch/autograd/graph.py", line 9 in run', '"/w/trainer/train.py", line 85 in _step'], "run, from trainer/train.py:85 in _step"),
        (['"/usr/lib/python3.11/threading.py", line 3 in wait'], "python3.11/threading.py:3 in wait"),
        (['"/w/a, line 2/b", line "c.py", line 3 in <module>'], 'a, line 2/b", line "c.py:3 in <module>'),
        ([], "an unknown place"),
    ],
)  # fmt: skip
def test_call_of_a_rank_is_the_innermost_of_its_main_thread_outside_libraries(frames: list[str], call: str) -> None:
    lines = "".join(f"  File {frame}\n" for frame in frames)
    assert innermost_call(f"{MAIN}Thread 0x2 (most recent call first):\n{lines}") == call


def test_innermost_call_is_found_in_a_deep_stack(tmp_path: Path) -> None:
    outer = "".join(f'  File "/w/{"deep/" * 50}{number}.py", line 1 in f\n' for number in range(99))
    (tmp_path / "stacks").mkdir()
    text = f'{MAIN}Thread 0x2 (most recent call first):\n  File "/w/trainer/train.py", line 85 in _step\n{outer}'
    (tmp_path / "stacks/3.txt").write_text(text)
    assert innermost_calls(str(tmp_path), [3]) == {3: "trainer/train.py:85 in _step"}


@pytest.mark.parametrize(
    ("kind", "signal", "stacks", "found"),
    [
        ("network", None, "x", "hang"),
        ("network", None, "", "network"),
        (None, "SIGABRT", "x", "hang"),
        (None, "SIGABRT", "", None),
        (None, "SIGKILL", "x", None),
        (None, None, "x", None),
        ("storage", None, "x", "storage"),
    ],
)
def test_exit_of_a_rank_that_left_stacks_is_a_hang(
    tmp_path: Path, kind: str | None, signal: str | None, stacks: str, found: str | None
) -> None:
    for name in ("error", "stacks"):
        (tmp_path / name).mkdir()
    if kind:
        (tmp_path / "error/3.json").write_text(f'{{"message": {{"message": "m", "extraInfo": {{"kind": "{kind}"}}}}}}')
    (tmp_path / "stacks/3.txt").write_text(stacks)
    assert failure_of(str(tmp_path), 3, signal, [3])[1] == found
    assert set(innermost_calls(str(tmp_path), [3, 4])) == ({3} if stacks else set())


def _without_progress(node: NodeObservation, *, state: str = "S", call: str = WAITS) -> NodeObservation:
    rank: RankBody = {
        "pid": 1, "state": state, "answers": state != "T", "phase": "step", "step": 12, "call": call if state != "T" else "",
        "loads_data": False, "groups": {}, "memory": None, "stacks": "",
    }  # fmt: skip
    ranks = {str(number): rank for number in node.ranks}  # as in JSON
    hang: HangBody = {"time": 0.0, "step_s": 0.5, "ranks": ranks}  # type: ignore[typeddict-item]
    return replace(node, hang=hang)


def test_reports_of_all_nodes_name_the_rank_that_is_stopped() -> None:
    at = (12, "step")
    waiting, stopped = _node("n0", {0: at}, {0: WAITS}), _node("n1", {1: at}, {})
    nodes = [_without_progress(waiting), _without_progress(stopped, state="T")]
    expected = f"rank 1 on n1: stopped by a signal (state T); rank 0 at {WAITS}"
    assert positions_without_progress(nodes) == expected
    assert expected in str(diagnose_hang(TIMEOUT, nodes).error)
    (finding,) = hang_findings(nodes)
    assert (finding.check, finding.nodes, finding.evidence) == ("no-progress", ("n0", "n1"), expected)
    assert finding.remedy.startswith(
        "`kill -CONT 1` on n1 continues rank 1, `orch stop` ends the run; their stacks are in "
    )


def test_the_answer_of_nccl_is_shown_with_the_verdict() -> None:
    at = (12, "step")
    first = _without_progress(_node("n0", {0: at}, {0: WAITS}))
    assert first.hang is not None
    answered, unanswered = first.hang.copy(), first.hang.copy()
    answered["ras"] = {"version": "2.29.7", "facts": ["rank 1 is dead"], "problem": ""}
    unanswered["ras"] = {"version": "2.29.7", "facts": [], "problem": "no answer"}
    nodes = [replace(first, hang=answered), _without_progress(_node("n1", {1: at}, {}), state="T")]
    assert positions_without_progress(nodes).startswith(
        "rank 1 on n1: stopped by a signal (state T); NCCL's RAS: rank 1 is dead; rank 0 at "
    )
    assert "RAS" not in positions_without_progress([replace(first, hang=unanswered), nodes[1]])


def test_finding_is_worded_for_one_rank_or_many() -> None:
    at = (12, "step")
    single, double = (_without_progress(_node("n0", steps, {})) for steps in ({0: at}, {0: at, 1: at}))
    [of_one], [of_two] = hang_findings([single]), hang_findings([double])
    assert of_one.text == "the rank makes no progress"
    assert of_one.remedy.startswith("it continues, or ends when a collective times out; its stacks are in ")
    assert of_two.text == "the ranks make no progress"
    assert of_two.remedy.startswith("they continue, or end when a collective times out; their stacks are in ")


def test_a_node_that_makes_progress_is_no_hang() -> None:
    at = (12, "step")
    nodes = [_without_progress(_node("n0", {0: at}, {0: WAITS})), _node("n1", {1: at}, {})]
    assert (positions_without_progress(nodes), hang_findings(nodes)) == ("", [])
    assert "left no stacks" in str(diagnose_hang(TIMEOUT, nodes).error)
