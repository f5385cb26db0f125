"""Loss, rate and memory over the steps of a run: read from metrics.jsonl as it grows, kept as one bucket per some steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.endpoint.files import FoundFiles
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.usecases.reports.metrics_file import find_metrics, read_part, records_of

MOST_POINTS = 400
"""The points of a curve at most; a chart has hardly more columns of pixels."""
PART_BYTES = 1 << 22
SAMPLES, SAMPLE_BYTES = 64, 1 << 15
"""The parts of a large file that are read first, for curves that are shown until the file was read."""
LARGE_BYTES = 2 * PART_BYTES
KEYS: Mapping[str, str] = {
    "loss": "loss",
    "tokens/s": "tokens_per_s",
    "samples/s": "samples_per_s",
    "steps/s": "steps_per_s",
    "memory": "peak_memory_bytes",
}
"""Curve -> key in metrics.jsonl; steps/s are those of programs whose steps only looks have shown."""

Point = tuple[int, float, float, float]
"""The first step of a bucket, and the least, the greatest and the mean value in it."""


class Curve:
    """
    One value over the steps, in buckets of equally many steps, at most MOST_POINTS of them.

    A bucket keeps its least and its greatest value, so that a spike in a million steps stays visible.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.width = 1
        """The steps of a bucket; doubled when there are too many buckets."""
        self._buckets: dict[int, tuple[float, float, float, int]] = {}
        """Number of the bucket -> least, greatest, sum, count."""

    def add(self, steps: Sequence[int], values: Sequence[float | None]) -> None:
        """Add the values of ascending steps; None where a step has no such number."""
        begin = 0
        while begin < len(steps):
            number = steps[begin] // self.width
            end = bisect_left(steps, (number + 1) * self.width, begin)
            if known := [value for value in values[begin:end] if value is not None]:
                self._merge(number, (min(known), max(known), math.fsum(known), len(known)))
            begin = end
        while len(self._buckets) > self._most:
            buckets, self._buckets = self._buckets, {}
            self.width *= 2
            for number, bucket in buckets.items():
                self._merge(number // 2, bucket)

    def points(self) -> list[Point]:
        """The buckets in the order of their steps."""
        in_order = sorted(self._buckets.items())
        return [(number * self.width, low, high, total / count) for number, (low, high, total, count) in in_order]

    def _merge(self, number: int, more: tuple[float, float, float, int]) -> None:
        known = self._buckets.get(number)
        if known is not None:
            more = min(known[0], more[0]), max(known[1], more[1]), known[2] + more[2], known[3] + more[3]
        self._buckets[number] = more


class Curves:
    """The curves of one run."""

    def __init__(self) -> None:
        self._curves = {name: Curve() for name in KEYS}

    def add_lines(self, lines: Sequence[bytes]) -> None:
        """Add lines of metrics.jsonl, in order; a damaged one is left out."""
        self.add(records_of(lines))

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add steps in order."""
        steps: list[int] = []
        kept = []
        for record in records:
            step = record.get("step")
            if type(step) is int and step >= 0 and (not steps or step > steps[-1]):
                steps.append(step)
                kept.append(record)
        for name, key in KEYS.items():
            if not any(key in record for record in (*kept[:1], *kept[-1:])):  # the lines of a run have the same keys
                continue
            self._curves[name].add(steps, [_number(record.get(key)) for record in kept])

    def to_json(self) -> dict[str, Any]:
        """The points by curve, for curves that have some; numbers of seven digits, more than a chart shows."""
        points = {name: curve.points() for name, curve in self._curves.items()}
        return {
            name: [[step, *(float(f"{value:.7g}") for value in values)] for step, *values in found]
            for name, found in points.items()
            if found
        }


class MetricsReader:
    """Reads metrics.jsonl of the shared trainer, each byte once; a file that a restart has rewritten from its begin."""

    def __init__(self) -> None:
        self.curves = Curves()
        """The curves of the lines that were read; until the whole file was read once, of samples."""
        self.is_found = False
        self._whole = Curves()
        self._file = ("", "")
        """The path of the file, and its inode."""
        self._offset = 0
        self._rest = b""
        """The line that was not complete."""

    def read(self, launcher: Launcher, plan: LaunchPlan) -> bool:
        """
        Read the next part, at most PART_BYTES; return whether there is more to read now.

        Raises:
            NodesError, NodeError: the node of rank 0 cannot be read.
        """
        found = find_metrics(launcher, plan)
        if found is None:
            return False
        folder, file = found
        inode, size = file.identity.partition(" ")[0], file.size_bytes
        self.is_found = True
        if (file.root, inode) != self._file or size < self._offset:
            self._file, self._offset, self._rest, self._whole = (file.root, inode), 0, b"", Curves()
            self.curves = self._sampled(folder, file) if size > LARGE_BYTES else self._whole
            if size > LARGE_BYTES:
                return True
        data = read_part(folder, file, self._offset, PART_BYTES)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._whole.add_lines(lines)
        has_more = bool(data) and self._offset < size
        if not has_more:
            self.curves = self._whole
        return has_more

    def _sampled(self, folder: AttemptFolder, file: FoundFiles) -> Curves:
        """The curves of parts of the file at equal distances, its begin and its end among them."""
        curves = Curves()
        for index in range(SAMPLES):
            offset = (file.size_bytes - SAMPLE_BYTES) * index // (SAMPLES - 1)
            lines = read_part(folder, file, offset, SAMPLE_BYTES).split(b"\n")
            curves.add_lines(lines[1 if offset else 0 : -1])
        return curves


def _number(value: object) -> float | None:
    """The value, if it is a finite number."""
    return value if type(value) in (int, float) and -math.inf < value < math.inf else None  # type: ignore[operator,return-value]
