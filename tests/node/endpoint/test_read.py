"""Following files through an endpoint: no byte twice, none missing, no file starved."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint, Heartbeat
from orchestrator.endpoint.replies import Chunk
from orchestrator.errors import NodeError
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
    chunks = endpoint.read(str(attempt), None, {})
    assert [chunk.file for chunk in chunks[:2]] == ["n0/events.jsonl", "n0/offsets.jsonl"]
    assert {chunk.file: chunk.data.decode() for chunk in chunks} == {
        f"n0/{name}": name for name in ("rank-0.out", "rank-0.err", "rank-12.out", "events.jsonl", "offsets.jsonl")
    }


def test_only_bytes_beyond_the_offsets_of_the_requested_nodes_are_read(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n1").mkdir()
    for node in ("n0", "n1"):
        (attempt / node / "rank-0.out").write_bytes(b"0123456789")
    assert endpoint.read(str(attempt), ["n1"], {"n1/rank-0.out": 7}) == [Chunk("n1/rank-0.out", 7, b"789")]
    assert endpoint.read(str(attempt), ["n1"], {"n1/rank-0.out": 10}, wait_s=0) == []


def test_single_files_can_be_requested_and_their_sizes_listed(endpoint: Endpoint, attempt: Path) -> None:
    for name in ("rank-0.out", "rank-1.out", "other"):
        (attempt / "n0" / name).write_bytes(b"012")
    assert endpoint.files(str(attempt), None) == {"n0/rank-0.out": 3, "n0/rank-1.out": 3}
    offsets = {"n0/rank-0.out": 5, "n0/rank-1.out": 1}
    assert endpoint.read(str(attempt), None, offsets, until={"n0/rank-1.out": 9}) == [Chunk("n0/rank-1.out", 1, b"12")]
    assert endpoint.read(str(attempt), None, {}, until={"n0/rank-1.out": 2}) == [Chunk("n0/rank-1.out", 0, b"01")]
    assert endpoint.files(str(attempt / "none"), None) == {}


def test_read_waits_for_a_missing_attempt(endpoint: Endpoint, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert endpoint.read(str(tmp_path / "none"), None, {"n0/rank-0.out": 5}, wait_s=0.2) == []
    assert time.monotonic() - begun >= 0.2


def test_new_output_ends_the_wait_and_other_requests_are_answered_before(endpoint: Endpoint, attempt: Path) -> None:
    found: list[Chunk] = []
    known: list[object] = []
    (attempt / "n0" / "events.jsonl").touch()
    _, state = endpoint.heartbeat(str(attempt), "n0", Heartbeat(None, (), 0.0))

    def wait_for_state() -> None:
        known.append(endpoint.heartbeat(str(attempt), "n0", Heartbeat(state, (), 60.0))[1])

    threads = [threading.Thread(target=lambda: found.extend(endpoint.read(str(attempt), None, {}, wait_s=60)))]
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
    while chunks := endpoint.read(str(attempt), None, follower.offsets, wait_s=0):
        assert sum(len(chunk.data) for chunk in chunks) <= 1 << 20
        follower.take(chunks)
    assert follower.content == {"n0/rank-0.out": content}


def test_a_flood_does_not_starve_the_others(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n0/rank-0.out").write_bytes(b"x" * 10_000_000)
    for rank in range(1, 10):
        (attempt / f"n0/rank-{rank}.out").write_bytes(b"y" * 100)
    chunks = endpoint.read(str(attempt), None, {}, max_bytes=65536)
    assert len(chunks) == 10
    assert sum(len(chunk.data) for chunk in chunks) == 65536


def test_files_are_read_in_rotation_if_the_budget_is_too_small_for_all(endpoint: Endpoint, attempt: Path) -> None:
    for rank in range(10):
        (attempt / f"n0/rank-{rank}.out").write_bytes(b"x" * 10_000_000)
    served: set[str] = set()
    for _ in range(10):
        served |= {chunk.file for chunk in endpoint.read(str(attempt), None, {}, max_bytes=4096)}
    assert len(served) == 10


def test_a_file_that_shrank_or_vanished_is_reported_once(endpoint: Endpoint, attempt: Path) -> None:
    (attempt / "n0/rank-0.out").write_bytes(b"x" * 30)
    offsets = {"n0/rank-0.out": 100, "n0/rank-1.out": 50}
    chunks = endpoint.read(str(attempt), None, offsets)
    assert sorted(chunks, key=lambda chunk: chunk.file) == [
        Chunk("n0/rank-0.out", 30, b"", gap=70),
        Chunk("n0/rank-1.out", 0, b"", gap=50),
    ]
    assert endpoint.read(str(attempt), None, {chunk.file: chunk.end for chunk in chunks}, wait_s=0) == []


@pytest.mark.parametrize("node", ["..", "a/b", "", "."])
def test_node_name_that_is_a_path_is_refused(endpoint: Endpoint, attempt: Path, node: str) -> None:
    with pytest.raises(NodeError, match="is not a node name"):
        endpoint.read(str(attempt), [node], {})


@pytest.mark.processes
def test_reconnecting_resumes_at_the_byte_while_a_writer_appends(attempt: Path) -> None:
    chance = random.Random(7)  # noqa: S311  the same pieces every time
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
                follower.take(endpoint.read(str(attempt), ["n0"], follower.offsets, max_bytes=50_000, wait_s=0))
        return finished and follower.offsets.get("n0/rank-0.out") == file.stat().st_size

    until(caught_up, deadline_s=60, awaited="the follower to catch up")
    writer.join()
    assert follower.content["n0/rank-0.out"] == file.read_bytes()
    assert set(follower.gaps.values()) == {0}
