"""The curves of a run: a bucket keeps its least and greatest value, and metrics.jsonl is read once, as it grows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.usecases.reports import curves as module
from orchestrator.usecases.reports.curves import Curve, Curves, MetricsReader
from orchestrator.usecases.reports.metrics_file import metrics_path, read_metrics


@pytest.mark.parametrize(
    ("most", "values", "points"),
    [
        (4, [], []),
        (4, [5.0], [(0, 5.0, 5.0, 5.0)]),
        (4, [1.0, 2.0, 3.0, 4.0], [(0, 1, 1, 1), (1, 2, 2, 2), (2, 3, 3, 3), (3, 4, 4, 4)]),
        (2, [1.0, 2.0, 3.0, 9.0], [(0, 1, 2, 1.5), (2, 3, 9, 6)]),
        (2, [1.0, None, None, 9.0], [(0, 1, 1, 1), (3, 9, 9, 9)]),
        (2, [None] * 4, []),
        (1, [0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0], [(0, 0, 9, 9 / 8)]),
    ],
    ids=["none", "one", "all", "pairs", "gaps", "no number", "one bucket"],
)
def test_buckets(most: int, values: Sequence[float | None], points: Sequence[tuple[int, float, float, float]]) -> None:
    curve = Curve(most)
    curve.add(range(len(values)), values)
    assert curve.points() == points


def test_spike_in_a_million_steps_is_visible() -> None:
    curve = Curve()
    for begin in range(0, 1_000_000, 10_000):
        curve.add(range(begin, begin + 10_000), [99.0 if begin + step == 654_321 else 1.0 for step in range(10_000)])
    points = curve.points()
    assert 200 <= len(points) <= module.MOST_POINTS
    assert [step for step, _, high, _ in points if high == 99.0] == [654_321 // curve.width * curve.width]
    assert {low for _, low, _, _ in points} == {1.0}


def test_parts_make_the_same_curve_as_the_whole() -> None:
    whole, parts = Curve(8), Curve(8)
    values = [float(step * 7919 % 101) for step in range(1000)]
    whole.add(range(1000), values)
    for begin in (0, 3, 500):
        parts.add(range(begin, {0: 3, 3: 500, 500: 1000}[begin]), values[begin : {0: 3, 3: 500, 500: 1000}[begin]])
    assert parts.points() == whole.points()


def test_damaged_lines_and_wrong_values_are_left_out() -> None:
    found = Curves()
    lines = [_line(1, 4.0), b'{"step": 2, "lo', b"7", b'{"step": true, "loss": 1}', b"", b'{"step": 3, "loss": NaN}']
    found.add_lines([*lines, b'{"step": 4, "loss": "x"}', _line(5, 2.0)])
    assert found.to_json()["loss"] == [[1, 4.0, 4.0, 4.0], [5, 2.0, 2.0, 2.0]]
    json.dumps(found.to_json(), allow_nan=False)


class Node:
    """The endpoint and the launcher of a node that has metrics.jsonl."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.inode = 1
        self.read_bytes = 0

    def attempt(self) -> int:
        return 1

    def attempt_folders(self, attempt: int, nodes: object) -> list[Any]:
        return [SimpleNamespace(endpoint=self, attempt_dir="/w", nodes=("n0",))]

    def list_files(self, attempt_dir: str, nodes: object, path: str, *, cwd: str) -> list[Any]:
        if self.data is None:
            return []
        return [SimpleNamespace(root=f"/w/{path}", identity=f"{self.inode} 0", size_bytes=len(self.data))]

    def read_file(self, attempt_dir: str, root: str, path: str, *, offset: int, size: int) -> bytes:
        assert self.data is not None
        data = self.data[offset : offset + size]
        self.read_bytes += len(data)
        return data


PLAN: Any = SimpleNamespace(
    program=SimpleNamespace(kind="trainer", args=("out=here",), cwd=""),
    config=None,
    by_count=False,
    head=SimpleNamespace(name="n0"),
)


def _line(step: int, loss: float) -> bytes:
    return json.dumps({"step": step, "loss": loss, "tokens_per_s": 10.0}).encode()


def _steps(reader: MetricsReader) -> list[int]:
    return [point[0] for point in reader.curves.to_json().get("loss", [])]


def _read(reader: MetricsReader, node: Any) -> bool:
    return reader.read(node, PLAN)


def test_file_is_read_as_it_grows_and_from_its_begin_if_rewritten() -> None:
    node, reader = Node(), MetricsReader()
    assert not _read(reader, node)
    assert not reader.is_found
    node.data = _line(1, 4.0) + b"\n" + _line(2, 3.0)[:10]
    assert not _read(reader, node)
    assert _steps(reader) == [1]
    node.data = b"".join(_line(step, 3.0) + b"\n" for step in (1, 2, 3))
    _read(reader, node)
    assert (_steps(reader), node.read_bytes) == ([1, 2, 3], len(node.data))
    _read(reader, node)
    assert node.read_bytes == len(node.data)
    node.data, node.inode = _line(1, 9.0) + b"\n", 2  # a resumed trainer writes the kept steps to a new file
    _read(reader, node)
    assert reader.curves.to_json()["loss"] == [[1, 9.0, 9.0, 9.0]]
    node.data = _line(1, 8.0) + b"\n" + _line(2, 8.0)[:-2]  # the disk became full
    _read(reader, node)
    node.data = node.data[:5]
    _read(reader, node)
    assert reader.curves.to_json() == {}


def test_large_file_is_sampled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 20_000)
    monkeypatch.setattr(module, "LARGE_BYTES", 40_000)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 200)
    node, reader = Node(), MetricsReader()
    node.data = b"".join(_line(step, 7.0 if step == 1234 else 1.0) + b"\n" for step in range(2000))
    assert _read(reader, node)
    assert node.read_bytes == module.SAMPLES * 200
    first, last = _steps(reader)[0], _steps(reader)[-1]
    assert (first, last) == (0, 1999)  # of the begin and of the end
    while _read(reader, node):
        assert _steps(reader)[-1] == last  # the samples are shown until the whole file was read
    assert node.read_bytes == module.SAMPLES * 200 + len(node.data)
    assert max(point[2] for point in reader.curves.to_json()["loss"]) == 7.0


def test_all_records_are_read_without_the_line_that_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.usecases.reports.metrics_file.PART_BYTES", 10)
    node: Any = Node()
    assert read_metrics(node, PLAN) == []
    node.data = _line(1, 4.0) + b"\nxx\n" + _line(2, 3.0) + b"\n" + _line(3, 2.0)[:-1]
    assert [record["loss"] for record in read_metrics(node, PLAN)] == [4.0, 3.0]


@pytest.mark.parametrize(
    ("kind", "out", "path"),
    [
        ("trainer", (), "checkpoints/metrics.jsonl"),
        ("trainer", ("out=a/b",), "a/b/metrics.jsonl"),
        ("trainer", ("out=/shared/x",), None),
        ("python", ("out=a",), None),
    ],
)
def test_path_of_the_metrics(kind: str, out: tuple[str, ...], path: str | None) -> None:
    plan: Any = SimpleNamespace(program=SimpleNamespace(kind=kind, args=out), config=None)
    assert metrics_path(plan) == path
