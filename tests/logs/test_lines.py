"""Parsing chunks into lines: nothing twice, nothing missing, the order of each rank kept."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.endpoint.logs import Chunk
from orchestrator.launchers.base import AttemptFolder
from orchestrator.logs.follow import Batch, Feed, live, merged
from orchestrator.logs.lines import (
    BAR_EVERY_S,
    MAX_LINE_BYTES,
    MAX_WRITE_TIMES,
    MIN_READ_TIMES,
    FileLines,
    LogLines,
    NodeLines,
    WriteTimes,
    in_order,
    last,
    prefix_of,
    prefixed,
)

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint


def _texts(chunks: list[bytes]) -> list[str]:
    file, offset, lines = FileLines("n0", 3, "out"), 0, []
    for chunk in chunks:
        lines += [text for group in file.feed(offset, chunk, 1.0) for text in group.text.split("\n")]
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


def test_newest_state_of_a_progress_bar_is_shown_while_its_line_is_incomplete() -> None:
    file = FileLines("n0", 0, "err")

    def states(at: float) -> list[str]:
        return [f"{line.time} {line.text}" for line in file.bar(at)]

    assert list(file.feed(0, b"\r 1%", 100.0)) == []
    assert states(100.0 + BAR_EVERY_S - 1) == []
    assert states(100.0 + BAR_EVERY_S) == [f"{100.0 + BAR_EVERY_S}  1%"]
    list(file.feed(4, b"\r 2%\r 3%\r  ", 140.0))
    assert states(140.0) == [], "the last one is too new"
    assert states(200.0) == ["200.0  3%"]
    assert states(300.0) == [], "nothing has changed"
    [line] = file.feed(16, b"\r100%\n", 310.0)
    assert line.text.endswith("100%")
    list(file.feed(22, b"no bar", 311.0))
    assert states(999.0) == []


def test_follower_gets_the_state_of_a_progress_bar() -> None:
    chunks = [[Chunk("n0/rank-0.err", 0, b"\r 1%\r 2%")]]

    def follow(*_: object, **__: object) -> tuple[list[Chunk], str]:
        return (chunks.pop() if chunks else []), "position"

    endpoint = cast("Endpoint", SimpleNamespace(follow=follow, observe=lambda *_: []))
    feed = Feed(AttemptFolder(lambda: endpoint, "/attempt-1", ("n0",)), bar_every_s=0.0)
    with live([feed]) as (arrivals, enough):
        states = [line.text for batch in next(arrivals) for line in batch.lines]
        enough.set()
    assert states == [" 2%"]


def test_agents_records_give_a_line_the_time_at_which_it_was_written() -> None:
    node = NodeLines("n0")
    records = [{"time": 10.0, "size": {"rank-0.out": 2}}, {"time": 20.0, "size": {"rank-0.out": 4}}]
    assert node.feed("offsets.jsonl", 0, "".join(json.dumps(record) + "\n" for record in records).encode(), 99.0) == []
    lines = node.feed("rank-0.out", 0, b"a\nb\nc\n", 99.0)
    assert [(line.text, line.time) for line in lines] == [("a", 10.0), ("b", 20.0), ("c", 99.0)]


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(1, 200), max_size=6), st.integers(1, 200))
def test_each_line_has_the_time_of_the_first_record_that_covers_it(
    lengths: list[int], sizes: list[int], cut: int
) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    ends = [sum(lengths[: index + 1]) + index + 1 for index in range(len(lengths))]
    file = FileLines("n0", 0, "out")
    for size in sorted(sizes):
        file.write_times.add(size, float(size))
    found = [*file.feed(0, data[:cut], 999.0), *file.feed(min(cut, len(data)), data[cut:], 999.0)]
    expected = [min([float(size) for size in sizes if size >= end], default=999.0) for end in ends]
    assert [group.time for group in found for _ in range(group.count)] == expected


def test_write_times_are_thinned_out_and_still_ascend_to_the_last() -> None:
    write_times = WriteTimes()
    for size in range(1, 10 * MAX_WRITE_TIMES):
        write_times.add(size, float(size))
    found = [write_times.covering(end) for end in range(1, 10 * MAX_WRITE_TIMES, 100)]
    assert all(
        record is not None and record[0] == record[1] >= end
        for end, record in zip(range(1, 10**6, 100), found, strict=False)
    )
    assert write_times.covering(10 * MAX_WRITE_TIMES - 1) == (10 * MAX_WRITE_TIMES - 1, 10.0 * MAX_WRITE_TIMES - 1)
    assert write_times.covering(10 * MAX_WRITE_TIMES) is None


def test_write_times_of_bytes_that_were_read_are_dropped_first() -> None:
    write_times = WriteTimes()
    for size in range(1, 10 * MAX_WRITE_TIMES):
        write_times.add(size, float(size))
        assert write_times.covering(size) == (size, float(size))


def test_unfinished_line_before_a_gap_is_not_joined_with_the_bytes_after_it() -> None:
    node = NodeLines("n0")
    assert node.feed("rank-0.out", 0, b"abc", 1.0) == []
    assert [lines.text for lines in node.gap("rank-0.out", 1, 1.0)] == ["abc"]
    assert [lines.text for lines in node.feed("rank-0.out", 1, b"xyz\n", 1.0)] == ["xyz"]
    event = json.dumps({"time": 5.0, "event": "note", "text": "whole"}).encode()
    assert node.feed("events.jsonl", 0, event[:9], 1.0) == []
    assert node.gap("events.jsonl", 0, 1.0) == []
    assert [lines.text for lines in node.feed("events.jsonl", 0, event + b"\n", 1.0)] == ["whole"]


def test_write_times_of_bytes_that_were_read_do_not_pile_up() -> None:
    write_times = WriteTimes()
    for size in range(1, 10 * MIN_READ_TIMES):
        write_times.add(size, float(size))
        write_times.covering(size)
        assert len(write_times) <= MIN_READ_TIMES + 1
    limited = NodeLines("n0")
    limited.limit(100, MAX_LINE_BYTES)
    records = (json.dumps({"time": 1.0 * size, "size": {"rank-0.out": size}}) for size in range(1, 1001))
    limited.feed("offsets.jsonl", 0, "".join(f"{record}\n" for record in records).encode(), 0.0)
    [*_, last_line] = limited.feed("rank-0.out", 0, b"x" * 999 + b"\n", 0.0)
    assert last_line.time == 1000.0
    assert limited.indexed_bytes("rank-0.out") == 1000


def test_damaged_records_are_skipped() -> None:
    node = NodeLines("n0")
    data = b'torn{"time": 1}\n[1]\n{"time": 1.0}\n{"time": 2.0, "event": "note", "text": "good"}\n'
    assert [lines.text for lines in node.feed("events.jsonl", 0, data, 9.0)] == ["good"]


def test_lines_of_one_time_stay_together() -> None:
    file = FileLines("n0", 0, "out")
    file.write_times.add(1000, 5.0)
    assert [group.count for group in file.feed(0, b"a line\n" * 200, 99.0)] == [142, 58]


def test_last_piece_of_a_long_line_is_not_joined_with_the_next_line() -> None:
    file = FileLines("n0", 0, "out")
    data = b"x" * (MAX_LINE_BYTES + 1) + b"\nnext\n"
    found = [*file.feed(0, data[:-7], 1.0), *file.feed(len(data) - 7, data[-7:], 1.0)]
    assert [(len(group.text), group.is_continuation) for group in found] == [
        (MAX_LINE_BYTES, False),
        (1, True),
        (4, False),
    ]


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(1, 20))
def test_tail_counts_lines(counts: list[int], wanted: int) -> None:
    numbers = iter(range(100))
    every = [[str(next(numbers)) for _ in range(count)] for count in counts]
    kept = last((LogLines(0.0, "n0", 0, "out", "\n".join(texts)) for texts in every), wanted)
    assert "\n".join(group.text for group in kept).split() == [text for texts in every for text in texts][-wanted:]


def test_agents_events_are_lines_without_a_rank() -> None:
    node = NodeLines("n0")
    event = {"time": 5.0, "event": "rank-exited", "text": "rank 3 exited 1"}
    data = json.dumps(event).encode() + b"\n"
    assert node.feed("events.jsonl", 0, data[:9], 9.0) == []
    [line] = node.feed("events.jsonl", 9, data[9:], 9.0)
    assert prefixed(line, prefix_of(line)) == "[n0:-] rank 3 exited 1"
    assert node.events == [event]


def test_output_of_a_program_that_starts_its_ranks_has_no_rank() -> None:
    [line] = NodeLines("n0").feed("program.err", 0, b"[rank3]: ValueError\n", 1.0)
    assert (line.rank, line.stream, prefixed(line, prefix_of(line))) == (None, "err", "[n0:-] [rank3]: ValueError")


def test_merge_is_by_time_and_keeps_each_streams_order() -> None:
    def line(time: float, text: str) -> LogLines:
        return LogLines(time, "n0", 0, "out", text)

    clock_set_back = [line(5.0, "a1"), line(1.0, "a2"), line(6.0, "a3")]
    second_stream = [line(2.0, "b1"), line(5.5, "b2")]
    assert [found.text for found in in_order([clock_set_back, second_stream])] == ["b1", "a1", "a2", "b2", "a3"]


def test_prefix_names_node_and_rank_and_json_has_the_documented_fields() -> None:
    lines = LogLines(1.5, "n0", 12, "err", "text\nmore")
    assert prefixed(lines, prefix_of(lines)) == "[n0:12] text\n[n0:12] more"
    assert [list(line) for line in lines.to_json()] == 2 * [["time", "node", "rank", "stream", "text"]]
    [state] = LogLines(1.5, "n0", 12, "err", " 50%", is_unfinished=True).to_json()
    assert state["unfinished"] is True


def test_batches_of_one_feed_are_never_reordered_whatever_their_times() -> None:
    """A line without a recorded time has the time of arrival, which is later than the recorded times of later lines."""
    feed = Feed(AttemptFolder(lambda: pytest.fail("nothing is read"), "/nowhere", ("n0",)))
    first, second = (LogLines(time, "n0", 0, "out", text) for time, text in ((9.0, "first"), (3.0, "second")))
    other_node = LogLines(5.0, "n1", 1, "out", "other")
    batches = [Batch(feed, [first]), Batch(Feed(feed.folder), [other_node]), Batch(feed, [second])]
    texts = [line.text for line in merged(batches)]
    assert texts.index("first") < texts.index("second")
    assert texts[0] == "other"
