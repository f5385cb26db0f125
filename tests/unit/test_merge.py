"""From chunks to lines: nothing twice, nothing missing, each rank in its own order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launchers.base import Place
from orchestrator.logs.follow import Batch, Feed, merged
from orchestrator.logs.merge import MAX_LINE_BYTES, FileLines, LogLine, NodeLines, in_order, prefixed


def _texts(chunks: list[bytes]) -> list[str]:
    file, offset, lines = FileLines("n0", 3, "out"), 0, []
    for chunk in chunks:
        lines += [line.text for line in file.feed(offset, chunk, 1.0)]
        offset += len(chunk)
    return lines + [line.text for line in file.close(1.0)]


@given(st.lists(st.text("ab\né", max_size=9)), st.data())
def test_lines_do_not_depend_on_how_the_bytes_were_cut(parts: list[str], data: st.DataObject) -> None:
    whole = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    expected = whole.decode().split("\n")
    assert _texts(chunks) == (expected if expected[-1] else expected[:-1])


def test_last_line_without_newline_is_not_lost() -> None:
    assert _texts([b"a\nlast"]) == ["a", "last"]


def test_empty_lines_are_kept() -> None:
    assert _texts([b"\n\na\n"]) == ["", "", "a"]


def test_bytes_that_are_no_text_are_shown_not_dropped() -> None:
    assert _texts([b"\xff\xfe ok\n"]) == ["\ufffd\ufffd ok"]


def test_endless_line_is_cut_so_that_memory_stays_bounded() -> None:
    texts = _texts([b"x" * (MAX_LINE_BYTES // 2)] * 5 + [b"\n"])
    assert [len(text) for text in texts] == [MAX_LINE_BYTES, MAX_LINE_BYTES, MAX_LINE_BYTES // 2]


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_cut_spares_characters_of_several_bytes(newline: bytes) -> None:
    text = "x" + "\N{GRINNING FACE}" * (MAX_LINE_BYTES // 2)
    texts = _texts([text.encode() + newline])
    assert "".join(texts) == text
    assert len(texts) == 3


def test_marks_give_a_line_the_time_it_was_written() -> None:
    node = NodeLines("n0")
    marks = [{"time": 10.0, "size": {"rank-0.out": 2}}, {"time": 20.0, "size": {"rank-0.out": 4}}]
    assert node.feed("offsets.jsonl", 0, "".join(json.dumps(mark) + "\n" for mark in marks).encode(), 99.0) == []
    lines = node.feed("rank-0.out", 0, b"a\nb\nc\n", 99.0)
    assert [(line.text, line.time) for line in lines] == [("a", 10.0), ("b", 20.0), ("c", 99.0)]


def test_agents_events_are_lines_of_no_rank() -> None:
    node = NodeLines("n0")
    event = {"time": 5.0, "event": "rank-exited", "text": "rank 3 exited 1"}
    data = json.dumps(event).encode() + b"\n"
    assert node.feed("events.jsonl", 0, data[:9], 9.0) == []
    [line] = node.feed("events.jsonl", 9, data[9:], 9.0)
    assert prefixed(line) == "[n0:-] rank 3 exited 1"
    assert node.events == [event]


def test_merge_is_by_time_and_keeps_each_streams_order() -> None:
    def line(time: float, text: str) -> LogLine:
        return LogLine(time, "n0", 0, "out", text)

    clock_set_back = [line(5.0, "a1"), line(1.0, "a2"), line(6.0, "a3")]
    other = [line(2.0, "b1"), line(5.5, "b2")]
    assert [found.text for found in in_order([clock_set_back, other])] == ["b1", "a1", "a2", "b2", "a3"]


def test_prefix_names_node_and_rank_and_json_has_the_documented_fields() -> None:
    line = LogLine(1.5, "n0", 12, "err", "text")
    assert prefixed(line) == "[n0:12] text"
    assert list(line.to_json()) == ["time", "node", "rank", "stream", "text"]


def test_batches_of_one_place_are_never_reordered_whatever_their_times() -> None:
    """A line that has no mark yet bears the time of its arrival, which is later than the marks of the lines after it."""
    place = Feed(Place(lambda: pytest.fail("nothing is read"), "/nowhere", ("n0",)))
    first, second = (LogLine(time, "n0", 0, "out", text) for time, text in ((9.0, "first"), (3.0, "second")))
    other = LogLine(5.0, "n1", 1, "out", "other")
    batches = [Batch(place, [first]), Batch(Feed(place.place), [other]), Batch(place, [second])]
    texts = [line.text for line in merged(batches)]
    assert texts.index("first") < texts.index("second")
    assert texts[0] == "other"
