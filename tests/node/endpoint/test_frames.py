"""The frames of a connection, at whatever bytes a stream cuts them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.node.endpoint.frames import READ_BYTES, Requests, write_frame

LARGE = bytes(range(256)) * (3 * READ_BYTES // 256)


def _frame(number: int, payload: bytes) -> bytes:
    header = json.dumps({"op": "x", "number": number, "bytes": len(payload)}).encode()
    return len(header).to_bytes(4, "big") + header + payload


@contextmanager
def _connection() -> Iterator[tuple[Requests, int]]:
    """The requests after the first one, which arrives together with the program that reads them."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        os.write(write, b"#" + _frame(0, b""))
        assert stream.read(1) == b"#"
        requests = Requests(stream)
        assert _next(requests) == (0, b"")
        yield requests, write


def _next(requests: Requests) -> tuple[int, bytes]:
    while (frame := requests.next(10.0)) is None:
        pass
    return frame[0]["number"], bytes(frame[1])


def test_frames_arrive_whole_wherever_the_stream_is_cut() -> None:
    sent = _frame(1, b"") + _frame(2, b"abc") + _frame(3, b"")
    for cut in range(1, len(sent)):
        with _connection() as (requests, write):
            os.write(write, sent[:cut])
            found = []
            while (frame := requests.next(0.0)) is not None:
                found.append((frame[0]["number"], bytes(frame[1])))
            os.write(write, sent[cut:])
            os.close(write)
            found += [_next(requests) for _ in range(3 - len(found))]
            assert found == [(1, b""), (2, b"abc"), (3, b"")]


def test_large_payload_is_followed_by_the_next_frame() -> None:
    with _connection() as (requests, write):
        unwritten = _frame(1, LARGE) + _frame(2, b"after")
        found: list[bytes] = []
        while len(found) < 2:
            unwritten = unwritten[os.write(write, unwritten[: READ_BYTES // 2]) :] if unwritten else unwritten
            if (frame := requests.next(10.0)) is not None:
                found.append(bytes(frame[1]))
        assert found == [LARGE, b"after"]


@pytest.mark.parametrize("missing", [1, 2, len(LARGE)])
def test_stream_that_ends_within_a_payload_is_no_frame(missing: int) -> None:
    with _connection() as (requests, write):
        unwritten = _frame(1, LARGE)[:-missing]
        while unwritten:
            unwritten = unwritten[os.write(write, unwritten[: READ_BYTES // 2]) :]
            assert requests.next(10.0) is None
        os.close(write)
        with pytest.raises(EOFError):
            requests.next(10.0)


def test_reply_is_read_as_it_was_written() -> None:
    with _connection() as (requests, write):
        write_frame(write, {"ok": True, "number": 7, "bytes": 3}, b"\x00\xff\n")
        assert _next(requests) == (7, b"\x00\xff\n")
        os.close(write)
