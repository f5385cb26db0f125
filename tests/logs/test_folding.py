"""Folding equal lines of many ranks: no line is lost, and each rank's lines keep their order."""

from __future__ import annotations

import io
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.console import LogView
from orchestrator.logs import folding
from orchestrator.logs.folding import Folding
from orchestrator.logs.lines import LogLines, Stream
from orchestrator.portable.names.hostlist import expand

RANKS = 4  # of each node


def _line(rank: int | None, text: str, time: float = 0.0, stream: Stream = "out", node: str = "") -> LogLines:
    return LogLines(time, node or f"n{(rank or 0) // RANKS}", rank, stream, text)


def _view(lines: list[LogLines]) -> list[str]:
    stream = io.StringIO()
    view = LogView(as_json=False, stream=stream, ranks_of=lambda _node: RANKS)
    view.write(lines)
    view.close()
    return stream.getvalue().splitlines()


def _unfolded(printed: list[str]) -> dict[int, list[str]]:
    """The lines of each rank that were printed for it; `*` are the ranks of the nodes."""
    found: dict[int, list[str]] = {}
    for line in printed:
        prefix, _, text = line.removeprefix("[").partition("] ")
        nodes, _, listed = prefix.rpartition(":")
        all_ranks = [int(node[1:]) * RANKS + local for node in expand(nodes) for local in range(RANKS)]
        for rank in all_ranks if listed == "*" else map(int, expand(f"[{listed}]")):
            assert rank in all_ranks
            found.setdefault(rank, []).append(text)
    return found


LINES = st.tuples(st.integers(0, 11), st.lists(st.sampled_from("abc"), min_size=1, max_size=3), st.floats(0, 0.6))


@given(st.lists(LINES, max_size=60), st.integers(1, 12))
def test_unfolding_gives_the_lines_of_each_rank_in_order(drawn: list[tuple[int, list[str], float]], held: int) -> None:
    time, lines = 0.0, list[LogLines]()
    expected: dict[int, list[str]] = {}
    for rank, texts, step in drawn:
        time += step
        lines.append(_line(rank, "\n".join(texts), time))
        expected.setdefault(rank, []).extend(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "MAX_LINES", held)
        printed = _view(lines)
    assert _unfolded(printed) == expected


def test_equal_lines_become_one_with_their_nodes_and_ranks() -> None:
    lines = [_line(rank, "loading\nstep 1") for rank in range(12)]
    lines += [_line(rank, "slow") for rank in (0, 1, 2, 9)]
    lines += [_line(3, "nan", stream="err"), _line(3, "nan")]
    lines += [_line(None, "ended", stream="event", node=f"n{number}") for number in range(3)]
    assert _view(lines) == [
        "[n[0-2]:*] loading",
        "[n[0-2]:*] step 1",
        "[n[0,2]:0-2,9] slow",
        "[n0:3] nan",
        "[n0:3] nan",
        "[n[0-2]:-] ended",
    ]


def test_lines_are_folded_within_a_second_of_the_first() -> None:
    lines = [_line(0, "a", 1.0), _line(1, "b", 1.5), _line(2, "a", 2.0), _line(3, "a", 2.1)]
    assert _view(lines) == ["[n0:0,2] a", "[n0:1] b", "[n0:3] a"]


def test_lines_that_are_followed_are_held_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    folds = Folding()
    assert list(folds.add([_line(0, "a")])) == []
    now += 0.5
    assert list(chain(folds.add([_line(1, "b")]), folds.overdue())) == []
    now += 0.5
    assert [fold.line.text for fold in folds.overdue()] == ["a"]
    assert [fold.line.text for fold in folds.rest()] == ["b"]
