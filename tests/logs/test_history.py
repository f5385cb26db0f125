"""Reading only the wanted end of a log: the same lines as a filter of the whole log, and few bytes."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.endpoint import connection
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.connection import frame
from orchestrator.errors import NodeError
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.logs import follow
from orchestrator.logs import history as past
from orchestrator.logs.follow import Feed, live, read_all
from orchestrator.logs.history import history
from orchestrator.logs.lines import LogLines, last
from orchestrator.logs.printable import printable
from orchestrator.logs.selection import Selection
from orchestrator.node.endpoint import positions
from orchestrator.node.protocol.output import LastLinesRequest
from orchestrator.plan.plan import LaunchPlan
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.reports.log_reader import LogReader, Viewer
from tests.until import until

NAMES = ("rank-0.out", "rank-0.err", "rank-1.out", "rank-11.out")
SERVER_AHEAD_S = 3600
"""The clock of the file system, which may be a server's, is ahead of the agent's."""
TICKS = 3000  # some blocks of the index


@pytest.fixture
def long_line(tmp_path: Path) -> Iterator[AttemptFolder]:
    """The folder of a finished attempt with a line that is longer than an answer."""
    (tmp_path / "n0").mkdir()
    finished = {"time": 1.0, "event": "agent-finished", "text": "over", "state": "DONE", "exit": None}
    (tmp_path / "n0" / "events.jsonl").write_text(f"{json.dumps(finished)}\n")
    (tmp_path / "n0" / "rank-0.out").write_text("x" * (6 * follow.LEAST_CHUNK_BYTES) + "\nend\n")
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield AttemptFolder(lambda: endpoint, str(tmp_path), ("n0",))


class Log:
    """A node folder that ranks of unequal pace wrote into, four records of the index a second."""

    def __init__(self, attempt: Path, endpoint: Endpoint) -> None:
        self.folder = attempt / "n0"
        self.end = time.time()
        self.attempt = AttemptFolder(lambda: endpoint, str(attempt), ("n0",))
        self._write()

    def _write(self) -> None:
        draw, size, changed = random.Random(5), dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0.0)
        chance = {"rank-0.out": 0.9, "rank-0.err": 0.0005, "rank-1.out": 0.05, "rank-11.out": 0.3}
        content, index = dict.fromkeys(NAMES, b""), []
        for tick in range(TICKS):
            moment = self.end - (TICKS - tick) / 4
            grown = {}
            for name in NAMES:
                if draw.random() < chance[name] or tick == 0:
                    content[name] += b"".join(f"{name} {tick} {n}\n".encode() for n in range(draw.randrange(1, 4)))
                    content[name] += b"half " if draw.random() < 0.2 else b""
                    grown[name], changed[name] = len(content[name]), moment
            size.update(grown)
            index.append(json.dumps({"time": moment, "size": grown}) if grown else "damaged")
        self.folder.mkdir(parents=True)
        (self.folder / "offsets.jsonl").write_text("\n".join(index) + "\n")
        for name in NAMES:
            (self.folder / name).write_bytes(content[name])
        for name, changed_s in {**changed, "offsets.jsonl": self.end - 0.25}.items():
            os.utime(self.folder / name, (changed_s + SERVER_AHEAD_S, changed_s + SERVER_AHEAD_S))

    def feed(self, selection: Selection | None = None) -> Feed:
        return Feed(self.attempt, selection or Selection())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def log(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Log(tmp_path_factory.mktemp("log"), endpoint)


def _lines(feed: Feed, selection: Selection) -> list[tuple[float, str]]:
    kept = [selection.of(group) for group in history([feed], limit=1)]
    return [(group.time, text) for group in kept if group is not None for text in group.text.split("\n")]


def _texts(groups: Iterator[LogLines] | list[LogLines]) -> list[str]:
    return [text for group in groups for text in group.text.split("\n")]


SELECTIONS = (
    Selection(),
    Selection(ranks=frozenset({1})),
    Selection(ranks=frozenset({0, 11}), stream="out"),
    Selection(stream="err"),
    Selection(nodes=frozenset({"n1"})),
)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_last_lines_are_those_of_the_whole_log(log: Log, selection: Selection, count: int) -> None:
    whole = _texts(list(last(filter(None, map(selection.of, history([log.feed()], limit=1))), count)))
    feed = log.feed(selection)
    feed.begin_at_last(count)
    assert _texts(list(last(history([feed], limit=1), count))) == whole


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("span_s", [1, 40, 10_000])
def test_lines_since_a_time_are_those_of_the_whole_log(log: Log, selection: Selection, span_s: int) -> None:
    recent = replace(selection, earliest=log.end - span_s)
    feed = log.feed(recent)
    feed.begin_at_time(log.end - span_s)
    assert _lines(feed, recent) == _lines(log.feed(), recent)


def test_reading_the_end_of_a_long_log_moves_few_bytes(log: Log) -> None:
    tail, since = log.feed(Selection(ranks=frozenset({0}), stream="out")), log.feed()
    tail.begin_at_last(3)
    since.begin_at_time(log.end - 1)
    for feed in (tail, since):
        positions = dict(feed.offsets)
        list(history([feed], limit=1))
        moved = sum(feed.offsets[file] - offset for file, offset in positions.items())
        assert 0 < moved < 1000
    assert tail.offsets.keys() == {"n0/rank-0.out", "n0/offsets.jsonl"}


def test_many_files_are_read_in_few_requests(endpoint: Endpoint, tmp_path: Path) -> None:
    requests: list[Endpoint] = []

    def of_request() -> Endpoint:
        requests.append(endpoint)
        return endpoint

    attempt = AttemptFolder(of_request, str(tmp_path), None)
    for rank in range(64):
        folder = tmp_path / f"n{rank // 8}"
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{rank}.out").write_text(f"{rank}\n")
        (folder / "offsets.jsonl").write_text("")
    assert len(_texts(history([Feed(attempt)], limit=1))) == 64
    assert len(requests) <= 3  # the sizes, the indexes and the files


def test_unfinished_lines_of_many_files_share_a_bound(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "LEAST_LINE_BYTES", 1000)
    monkeypatch.setattr(past, "HELD_LINE_BYTES", 64_000)
    bar = "".join(f"{step:6}%\r" for step in range(10_000))
    for rank in range(32):
        folder = tmp_path / f"n{rank // 8}"
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{rank}.out").write_text(bar, newline="")
    feed = Feed(AttemptFolder(lambda: endpoint, str(tmp_path), None))
    groups = [*history([feed], limit=1), *feed.unfinished_lines()]
    assert max(len(group.text) for group in groups) <= 64_000 // 32
    texts = dict.fromkeys(range(32), "")
    for group in groups:
        assert group.rank is not None
        texts[group.rank] += group.text.replace("\r", "")
    assert set(texts.values()) == {bar.replace("\r", "")}


def test_a_late_line_of_a_quiet_file_does_not_make_the_whole_index_be_read_first(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "INDEX_BYTES", 1000)
    for name in ("CHUNK_BYTES", "LEAST_CHUNK_BYTES"):
        monkeypatch.setattr(follow, name, 100)
    ticks, nodes = 300, ("n0", "n1", "n2")
    sizes = [{"rank-0.out": 7 * (tick + 1)} for tick in range(ticks)]
    sizes[0]["rank-0.err"], sizes[-1]["rank-0.err"] = 6, 11
    records = [f"{json.dumps({'time': 1000.0 + tick, 'size': size})}\n" for tick, size in enumerate(sizes)]
    for node in nodes:
        (tmp_path / node).mkdir()
        (tmp_path / node / "rank-0.out").write_text("".join(f"{node} {tick:03}\n" for tick in range(ticks)))
        (tmp_path / node / "rank-0.err").write_text("first\nlate\n")
        (tmp_path / node / "offsets.jsonl").write_text("".join(records))
    requests: list[Endpoint] = []

    def of_request() -> Endpoint:
        requests.append(endpoint)
        return endpoint

    feeds = [
        Feed(AttemptFolder(of_request, str(tmp_path), ("n0",))),
        Feed(AttemptFolder(of_request, str(tmp_path), nodes)),
    ]
    counts = []
    for feed in feeds:
        requests.clear()
        shown = []
        for group in history([feed], limit=1):
            shown += [(group.time, text) for text in group.text.split("\n")]
            needed = sum(map(len, records[: int(group.time) - 999]))
            assert all(feed.offsets[file] <= needed + 2000 for file in feed.offsets if file.endswith("offsets.jsonl"))
        files = len(feed.folder.nodes or ())
        ends = [(1000.0, "first"), (1000.0 + ticks - 1, "late")] * files
        assert shown == sorted(shown, key=lambda line: line[0])
        assert Counter(shown) == Counter([(1000.0 + int(text[3:]), text) for _, text in shown if text[0] == "n"] + ends)
        assert len(shown) == (ticks + 2) * files
        counts.append(len(requests))
    assert counts[1] < 1.5 * counts[0]  # all nodes are read at the same time


@pytest.mark.processes
def test_reader_continues_at_its_offsets_after_a_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def kept_frame(request: Mapping[str, object]) -> bytes:
        sent.append(request.get("begin"))
        return frame(request)

    monkeypatch.setattr(connection, "frame", kept_frame)
    (tmp_path / "n0").mkdir()
    texts: list[str] = []
    with ExitStack() as opened:
        endpoints = [opened.enter_context(Endpoint.connect(LocalTransport("n0"), sys.executable)) for _ in range(2)]
        feed = Feed(AttemptFolder(lambda: endpoints[0], str(tmp_path), None))
        sent.clear()
        for number in range(6):
            if number == 4:
                endpoints.pop(0).close()
            with (tmp_path / "n0/rank-0.out").open("a") as file:
                file.write(f"{number}\n")
            texts += _texts(feed.read(wait_s=0))
    assert texts == ["0", "1", "2", "3", "4", "5"]
    assert [begin is not None for begin in sent] == [True, False, False, False, False, True, False]


def test_last_lines_of_all_nodes_are_read_at_the_same_time(endpoint: Endpoint, tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=10)
    (tmp_path / "n0").mkdir()
    (tmp_path / "n0" / "rank-0.out").write_text("last\n")

    def once_both_are_requested() -> Endpoint:
        barrier.wait()
        return endpoint

    def unreachable() -> Endpoint:
        barrier.wait()
        raise NodeError("n1", "gone")

    feeds = [Feed(AttemptFolder(reach, str(tmp_path), None)) for reach in (once_both_are_requested, unreachable)]
    lines, error = read_all(feeds, limit=2)
    assert isinstance(lines, list)
    assert _texts(lines) == ["last"]
    assert str(error) == "n1: gone"


def test_small_chunks_give_the_same_lines_at_the_same_times(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _lines(log.feed(), Selection())
    for name in ("CHUNK_BYTES", "LEAST_CHUNK_BYTES"):
        monkeypatch.setattr(follow, name, 500)
    for name, size in {"ROUND_BYTES": 1500, "INDEX_BYTES": 300}.items():
        monkeypatch.setattr(past, name, size)
    assert _lines(log.feed(), Selection()) == whole


def test_new_lines_continue_after_the_last_ones(endpoint: Endpoint, tmp_path: Path) -> None:
    log = Log(tmp_path, endpoint)
    feed = log.feed(Selection(ranks=frozenset({1})))
    feed.begin_at_last(1)
    list(history([feed], limit=1))
    for name in ("rank-1.out", "rank-0.out"):
        with (log.folder / name).open("a") as file:
            file.write("new\n")
    assert [group.text.split()[-1] for group in feed.read(wait_s=0)] == ["new"]
    assert feed.gaps(NodeError("n0", "gone"))[0].text.endswith("how much is not known")


@pytest.mark.parametrize("limit", ["RECENT_BYTES", "RECENTS_BYTES"])
def test_file_without_recent_records_has_the_time_of_its_last_change(
    log: Log, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    request: LastLinesRequest = {
        "attempt_dir": str(log.folder.parent),
        "nodes": ["n0"],
        "outputs": Selection(ranks=frozenset({0})).outputs,
        "lines": 100,
    }
    exact = positions.last_lines(request, b"")[0]["written"]["n0/rank-0.err"]
    monkeypatch.setattr(positions, limit, 0)
    coarse = positions.last_lines(request, b"")[0]["written"]["n0/rank-0.err"]
    assert len(exact) > 1
    state = (log.folder / "rank-0.err").stat()
    [(size, time_s)] = coarse
    assert size == state.st_size
    assert time_s == pytest.approx(state.st_mtime - SERVER_AHEAD_S, abs=0.001)


_OUTPUT = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b" "]), max_size=60).map(b"".join)


@given(_OUTPUT, st.integers(0, 5), st.integers(1, 7))
def test_last_lines_begin_at_the_start_of_the_first_one(data: bytes, lines: int, block_bytes: int) -> None:
    whole = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    start, _ = _last_lines(data, lines, block_bytes, most_bytes=len(data))
    assert data[start:].split(b"\n")[:-1] == (whole[-lines:] if lines else [])


@given(_OUTPUT, st.integers(0, 5), st.integers(1, 7))
def test_lines_without_the_skipped_parts_look_the_same(data: bytes, lines: int, block_bytes: int) -> None:
    start, skipped = _last_lines(data, lines, block_bytes, most_bytes=len(data))
    kept, position = b"", start
    for begin, end in skipped:
        assert position <= begin < end < len(data)
        kept, position = kept + data[position:begin], end
    kept += data[position:]
    shown, unchanged = ([printable(line) for line in text.decode().split("\n")] for text in (kept, data[start:]))
    assert shown == unchanged


@given(_OUTPUT, st.integers(0, 5), st.integers(1, 7), st.integers(1, 60))
def test_a_limited_search_finds_a_part_of_the_last_lines(data: bytes, lines: int, block_bytes: int, most: int) -> None:
    start, skipped = _last_lines(data, lines, block_bytes, most_bytes=most)
    unlimited, _ = _last_lines(data, lines, block_bytes, most_bytes=len(data))
    assert max(unlimited, len(data) - most) <= start <= len(data)
    assert all(begin >= start for begin, _ in skipped)


def _last_lines(data: bytes, lines: int, block_bytes: int, *, most_bytes: int) -> tuple[int, list[tuple[int, int]]]:
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write(data)
        file.flush()
        for name in ("BLOCK_BYTES", "LEAST_BLOCK_BYTES", "LONG_BYTES"):
            patch.setattr(positions, name, block_bytes)
        return positions.starts_of_last_lines(file.name, len(data), lines, most_bytes=most_bytes)


def test_last_lines_have_only_the_last_states_of_long_progress_bars(endpoint: Endpoint, tmp_path: Path) -> None:
    bar = b"".join(b"\r%07d of 1000000 steps" % step for step in range(200_000))
    feed = _feed_of(endpoint, tmp_path, b"before\n" + bar + b"\nbetween\n" + bar)
    feed.begin_at_last(3)
    assert feed.is_at_start
    shown = [*_texts(history([feed], limit=1)), *_texts(feed.unfinished_lines())]
    assert shown == ["before", "0199999 of 1000000 steps", "between", "0199999 of 1000000 steps"]


def test_search_for_last_lines_is_limited_by_the_number_of_files(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "x" * (3 * positions.LONG_BYTES)
    feed = _feed_of(endpoint, tmp_path, f"{line}\nlast\n{line}".encode())
    request: LastLinesRequest = {
        "attempt_dir": str(tmp_path),
        "nodes": ["n0"],
        "outputs": Selection().outputs,
        "lines": 1,
    }
    assert positions.last_lines(request, b"")[0]["offsets"]["n0/rank-0.out"] == len(line) + 1
    monkeypatch.setattr(positions, "SEARCH_BYTES", 0)
    feed.offsets = positions.last_lines(request, b"")[0]["offsets"]
    list(history([feed], limit=1))
    assert _texts(feed.unfinished_lines()) == ["x" * positions.LONG_BYTES]


def test_lines_since_a_time_begin_at_a_state_of_a_long_progress_bar(endpoint: Endpoint, tmp_path: Path) -> None:
    bar = b"".join(b"\r%07d of 1000000 steps" % step for step in range(200_000))
    feed = _feed_of(endpoint, tmp_path, bar)
    now, old = time.time(), bar.rindex(b"\r")
    records = [{"time": now - 100, "size": {"rank-0.out": old}}, {"time": now, "size": {"rank-0.out": len(bar)}}]
    (tmp_path / "n0/offsets.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    feed.begin_at_time(now - 1)
    assert bar[feed.offsets["n0/rank-0.out"] :].split(b"\r") == [
        b"0199998 of 1000000 steps",
        b"0199999 of 1000000 steps",
    ]


def _feed_of(endpoint: Endpoint, folder: Path, output: bytes) -> Feed:
    """A feed of a node folder whose only rank has printed this."""
    (folder / "n0").mkdir()
    (folder / "n0/rank-0.out").write_bytes(output)
    return Feed(AttemptFolder(lambda: endpoint, str(folder), ("n0",)))


AGENT_ELSEWHERE = {
    **dict.fromkeys(("boot_id", "host_id", "hostname", "python", "node", "rendezvous"), "other"),
    **dict.fromkeys(("pid", "start_time", "pgid", "node_rank", "world_size", "started"), 1),
    "ranks": [0],
}


def test_nodes_are_observed_once_more_after_an_event_or_after_a_while(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Log(tmp_path, endpoint).feed()
    with monkeypatch.context() as patch:
        patch.setattr(follow, "OBSERVATIONS_PER_S", 1e-3)
        assert [node.node for node in feed.observe()] == ["n0"]
        assert feed.observe() == []
    (tmp_path / "n0/events.jsonl").write_text('{"time": 1.0, "event": "note", "text": "x"}\n')
    feed.read(wait_s=0)
    assert [node.node for node in feed.observe()] == ["n0"]
    (tmp_path / "n0/agent.json").write_text(json.dumps(AGENT_ELSEWHERE))
    [node] = until(feed.observe, awaited="the next observation")
    assert node.agent
    monkeypatch.setattr(follow, "OBSERVATIONS_PER_S", math.inf)
    assert feed.observe() == []  # only events are news of an agent on another machine


def test_nodes_that_a_supervisor_observes_are_not_observed(endpoint: Endpoint, tmp_path: Path) -> None:
    feed = Log(tmp_path, endpoint).feed()
    feed.observes = False
    assert feed.observe() == []
    feed.observes = True
    assert [node.node for node in feed.observe()] == ["n0"]


def test_a_line_that_is_longer_than_an_answer_is_followed_to_its_end(
    long_line: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "HELD_BYTES", follow.LEAST_CHUNK_BYTES)  # as with thousands of feeds
    with live([Feed(long_line)]) as (arrivals, _):
        lines = [group.text for batches in arrivals for batch in batches for group in batch.lines]
    assert lines[-1].endswith("end")


class OneFolder:
    """A launcher whose only attempt has one folder."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._folder = folder

    def attempt_folders(self, _attempt: int, _nodes: frozenset[str] | None) -> list[AttemptFolder]:
        return [self._folder]


class Lines:
    """Collects what a reader shows."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, lines: Iterable[LogLines]) -> None:
        self.texts += [group.text for group in lines]


def test_a_line_that_is_longer_than_an_answer_is_among_the_remaining_ones(
    long_line: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "HELD_BYTES", follow.LEAST_CHUNK_BYTES)
    shown, plan = Lines(), SimpleNamespace(ssh={"fanout": 1})
    LogReader(cast("Launcher", OneFolder(long_line)), cast("LaunchPlan", plan), cast("Viewer", shown)).show_remaining()
    assert "".join(shown.texts).endswith("end")
