"""Following files through an endpoint: no byte twice, none missing, no file starved."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.endpoint.client import ALL_OUTPUTS, Endpoint, Heartbeat
from orchestrator.endpoint.logs import Chunk
from orchestrator.errors import NodeError
from orchestrator.node.endpoint import reading
from orchestrator.node.protocol.output import FollowBody
from orchestrator.transports.local import LocalTransport
from tests.until import until


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "n0").mkdir()
    return tmp_path


def _count_calls(patch: pytest.MonkeyPatch, module: ModuleType, name: str, calls: list[str]) -> None:
    function = getattr(module, name)

    def counted(*args: object, **options: object) -> object:
        calls.append(name)
        return function(*args, **options)

    patch.setattr(module, name, counted)


class Follower:
    """Collects chunks as a log follower does."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.offsets: dict[str, int] = {}
        self.gaps: dict[str, int] = {}

    def take(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if not chunk.gap:
                assert chunk.offset == self.offsets.get(chunk.file, 0)
            self.gaps[chunk.file] = self.gaps.get(chunk.file, 0) + chunk.gap
            self.content[chunk.file] = self.content.get(chunk.file, b"") + chunk.data
            self.offsets[chunk.file] = chunk.end


def test_events_and_ranks_output_are_read_and_nothing_else(endpoint: Endpoint, attempt: Path) -> None:
    for name in (
        "rank-0.out",
        "rank-0.err",
        "rank-12.out",
        "events.jsonl",
        "offsets.jsonl",
        "agent.json",
        "rank-x.out",
        "a",
    ):
        (attempt / "n0" / name).write_text(name)
    (attempt / "n0/rank-1.out").symlink_to("/etc/passwd")
    os.mkfifo(attempt / "n0/rank-2.out")
    (attempt / "job.json").write_text("{}")
    chunks = endpoint.follow(str(attempt), None, {})[0]
    assert [chunk.file for chunk in chunks[:2]] == ["n0/events.jsonl", "n0/offsets.jsonl"]
    assert {chunk.file: chunk.data.decode() for chunk in chunks} == {
        f"n0/{name}": name for name in ("rank-0.out", "rank-0.err", "rank-12.out", "events.jsonl", "offsets.jsonl")
    }


def test_only_bytes_beyond_the_offsets_of_the_requested_nodes_are_read(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n1").mkdir()
    for node in ("n0", "n1"):
        (attempt / node / "rank-0.out").write_bytes(b"0123456789")
    assert endpoint.follow(str(attempt), ["n1"], {"n1/rank-0.out": 7})[0] == [Chunk("n1/rank-0.out", 7, b"789")]
    assert endpoint.follow(str(attempt), ["n1"], {"n1/rank-0.out": 10}, wait_s=0)[0] == []


def test_single_files_can_be_requested_and_their_sizes_listed(endpoint: Endpoint, attempt: Path) -> None:
    for name in ("rank-0.out", "rank-1.out", "other"):
        (attempt / "n0" / name).write_bytes(b"012")
    assert endpoint.files(str(attempt), None) == {"n0/rank-0.out": 3, "n0/rank-1.out": 3}
    assert endpoint.read(str(attempt), {"n0/rank-1.out": (5, 9)}) == [Chunk("n0/rank-1.out", 3, b"", gap=2)]
    assert endpoint.read(str(attempt), {"n0/rank-1.out": (1, 9)}) == [Chunk("n0/rank-1.out", 1, b"12")]
    assert endpoint.read(str(attempt), {"n0/rank-1.out": (0, 2)}) == [Chunk("n0/rank-1.out", 0, b"01")]
    assert endpoint.files(str(attempt / "none"), None) == {}


def test_read_waits_for_a_missing_attempt(endpoint: Endpoint, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert endpoint.follow(str(tmp_path / "none"), None, {"n0/rank-0.out": 5}, wait_s=0.2)[0] == []
    assert time.monotonic() - begun >= 0.2


def test_new_output_ends_the_wait_and_other_requests_are_answered_before(endpoint: Endpoint, attempt: Path) -> None:
    found: list[Chunk] = []
    known: list[object] = []
    (attempt / "n0" / "events.jsonl").touch()
    _, state = endpoint.heartbeat(str(attempt), "n0", Heartbeat(None, (), 0.0))

    def wait_for_state() -> None:
        known.append(endpoint.heartbeat(str(attempt), "n0", Heartbeat(state, (), 60.0))[1])

    threads = [threading.Thread(target=lambda: found.extend(endpoint.follow(str(attempt), None, {}, wait_s=60)[0]))]
    threads.append(threading.Thread(target=wait_for_state))
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert [node.node for node in endpoint.observe(str(attempt), ["n0"])] == ["n0"]
    assert (found, known) == ([], [])
    (attempt / "n0" / "rank-0.out").write_bytes(b"now\n")
    threads[0].join(60)
    assert found == [Chunk("n0/rank-0.out", 0, b"now\n")]
    assert known == []
    (attempt / "n0" / "events.jsonl").write_bytes(b"{}\n")
    threads[1].join(60)
    assert known == [[[3, False, False]]]


def test_a_line_of_ten_megabytes_arrives_in_pieces(endpoint: Endpoint, attempt: Path) -> None:
    content = os.urandom(10_000_000)
    (attempt / "n0/rank-0.out").write_bytes(content)
    follower = Follower()
    sizes = []
    while chunks := endpoint.follow(str(attempt), None, follower.offsets, wait_s=0)[0]:
        sizes.append(sum(len(chunk.data) for chunk in chunks))
        follower.take(chunks)
    assert max(sizes) <= 1 << 20
    assert sizes[1] <= 2 * sizes[0]  # no more than twice as long as the previous one, which the link has carried
    assert follower.content == {"n0/rank-0.out": content}


def test_a_flood_does_not_starve_the_others(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n0/rank-0.out").write_bytes(b"x" * 10_000_000)
    for rank in range(1, 10):
        (attempt / f"n0/rank-{rank}.out").write_bytes(b"y" * 100)
    chunks = endpoint.follow(str(attempt), None, {}, max_bytes=65536)[0]
    assert len(chunks) == 10
    assert sum(len(chunk.data) for chunk in chunks) == 65536


def test_files_are_read_in_rotation_if_the_budget_is_too_small_for_all(endpoint: Endpoint, attempt: Path) -> None:
    for rank in range(10):
        (attempt / f"n0/rank-{rank}.out").write_bytes(b"x" * 10_000_000)
    served: set[str] = set()
    position: str | None = None
    for _ in range(10):
        chunks, position = endpoint.follow(str(attempt), None, {}, position=position, max_bytes=4096)
        served |= {chunk.file for chunk in chunks}
    assert len(served) == 10


def test_a_file_that_shrank_or_vanished_is_reported_once(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n0/rank-0.out").write_bytes(b"x" * 30)
    offsets = {"n0/rank-0.out": 100, "n0/rank-1.out": 50}
    chunks = endpoint.follow(str(attempt), None, offsets)[0]
    assert sorted(chunks, key=lambda chunk: chunk.file) == [
        Chunk("n0/rank-0.out", 30, b"", gap=70),
        Chunk("n0/rank-1.out", 0, b"", gap=50),
    ]
    assert endpoint.follow(str(attempt), None, {chunk.file: chunk.end for chunk in chunks}, wait_s=0)[0] == []


@pytest.mark.parametrize("node", ["..", "a/b", "", "."])
def test_node_name_that_is_a_path_is_refused(endpoint: Endpoint, attempt: Path, node: str) -> None:
    with pytest.raises(NodeError, match="is not a node name"):
        endpoint.follow(str(attempt), [node], {})[0]


@pytest.mark.processes
def test_reconnecting_resumes_at_the_byte_while_a_writer_appends(attempt: Path) -> None:
    chance = random.Random(7)  # the same pieces every time
    file, total = attempt / "n0/rank-0.out", 3_000_000
    done = threading.Event()

    def write() -> None:
        written = 0
        with file.open("ab", buffering=0) as stream:
            while written < total:
                written += stream.write(chance.randbytes(chance.randint(1, 20_000)))
        done.set()

    follower = Follower()
    writer = threading.Thread(target=write)
    writer.start()

    def caught_up() -> bool:
        finished = done.is_set()
        with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
            for _ in range(20):
                follower.take(endpoint.follow(str(attempt), ["n0"], follower.offsets, max_bytes=50_000, wait_s=0)[0])
        return finished and follower.offsets.get("n0/rank-0.out") == file.stat().st_size

    until(caught_up, awaited="the follower to catch up")
    writer.join()
    assert follower.content["n0/rank-0.out"] == file.read_bytes()
    assert set(follower.gaps.values()) == {0}


def test_a_position_replaces_the_offsets_while_the_node_knows_it(endpoint: Endpoint, attempt: Path) -> None:
    out = attempt / "n0/rank-0.out"
    out.write_bytes(b"0123456789")
    chunks, position = endpoint.follow(str(attempt), None, {"n0/rank-0.out": 8})
    assert chunks == [Chunk("n0/rank-0.out", 8, b"89")]
    whole, second_reader = endpoint.follow(str(attempt), None, {})
    assert whole == [Chunk("n0/rank-0.out", 0, b"0123456789")]
    assert position != second_reader
    out.write_bytes(b"0123456789ab")
    wrong = {"n0/rank-0.out": 0}  # it is not sent
    chunks, next_position = endpoint.follow(str(attempt), None, wrong, position=position, wait_s=0)
    assert chunks == [Chunk("n0/rank-0.out", 10, b"ab")]
    out.write_bytes(b"0")
    assert endpoint.follow(str(attempt), None, wrong, position=next_position, wait_s=0)[0] == [
        Chunk("n0/rank-0.out", 1, b"", gap=11)
    ]
    offsets = {"n0/rank-0.out": 1}
    for unknown in (position, "of another connection"):
        assert endpoint.follow(str(attempt), None, offsets, position=unknown, wait_s=0)[0] == []


@pytest.mark.parametrize("nodes", [None, ["n0", "n1"]])
def test_quiet_folders_cost_one_stat_per_second_and_growth_is_still_found(
    attempt: Path, nodes: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("n0", "n1"):
        (attempt / node).mkdir(exist_ok=True)
        for name in ("events.jsonl", "offsets.jsonl", *(f"rank-{rank}.out" for rank in range(8))):
            (attempt / node / name).write_text("old")
    begin: FollowBody = {"attempt_dir": str(attempt), "nodes": nodes, "outputs": ALL_OUTPUTS, "offsets": {}}
    subscription = reading.Subscription(begin, 0.0)
    calls: list[str] = []
    for module, name in ((os, "lstat"), (os, "stat"), (os, "scandir"), (os, "open")):
        _count_calls(monkeypatch, module, name, calls)

    clock = itertools.count()

    def grown_in(seconds: int) -> set[str]:
        times = itertools.islice(clock, seconds)
        return {name for second in times for name in subscription.grown(float(second), at_once=False)[0]}

    files = grown_in(1)
    assert len(files) == 20
    subscription.offsets.update(dict.fromkeys(files, 3))
    assert grown_in(20) == set()
    calls.clear()
    assert grown_in(100) == set()
    assert calls.count("lstat") == 2 * 100
    assert len(calls) == 2 * 100 + (100 if nodes is None else 0)  # the list of the nodes
    for name, patience_s in (("events.jsonl", 3), ("offsets.jsonl", 3), ("rank-7.out", 8 * reading.OUTPUTS_EVERY)):
        (attempt / "n1" / name).write_text("older")
        assert grown_in(patience_s) == {f"n1/{name}"}
        subscription.offsets[f"n1/{name}"] = 5
        assert grown_in(20) == set()


def test_a_burst_larger_than_an_answer_is_read_to_its_end_after_a_pause(attempt: Path) -> None:
    (attempt / "n1").mkdir(parents=True)
    (attempt / "n1" / "rank-0.out").write_bytes(b"x" * 10_000)
    begin: FollowBody = {"attempt_dir": str(attempt), "nodes": ["n1"], "outputs": ALL_OUTPUTS, "offsets": {}}
    subscription = reading.Subscription(begin, 0.0)
    name = "n1/rank-0.out"
    assert subscription.grown(0.0, at_once=False)[0] == {name: (0, 10_000)}
    subscription.offsets[name] = 4096  # the rest did not fit into the answer
    pause_s = 10 * reading.ACTIVE_S  # the reader was stopped meanwhile, and the rank is silent
    assert subscription.grown(pause_s, at_once=False)[0] == {name: (4096, 10_000)}
