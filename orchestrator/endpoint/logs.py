"""Pieces of the ranks' output, positions in it, and the end of a batch script's log, as endpoints read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.node.run.run_folder import ATTEMPT_BEGINS

if TYPE_CHECKING:
    from orchestrator.endpoint.clock import ClockBounds
    from orchestrator.node.protocol.output import PositionsReply

_ATTEMPT_BEGINS = re.compile("^" + ATTEMPT_BEGINS.format("[0-9]+"), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    A piece of a file, `n0/rank-0.out`, from `offset` to `end`.

    A gap has no data: the file became `gap` bytes shorter than the part that was read, and continues at `offset`. Add
    `correction_s` to the times that the node's agent wrote to convert them to this machine's clock.
    """

    file: str
    offset: int
    data: bytes
    gap: int = 0
    correction_s: float = field(default=0.0, compare=False)

    @property
    def end(self) -> int:
        """The offset of the next piece."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Positions:
    """
    Positions from which to read: offsets by file, `n0/rank-0.out`.

    `skipped` has, by file, the parts beyond its offset that need not be read, ascending, each from the start of a line on. `written`
    has sizes of the file beyond its offset, ascending, and when it had them by this machine's clock.
    """

    offsets: Mapping[str, int]
    skipped: Mapping[str, Sequence[tuple[int, int]]]
    written: Mapping[str, Sequence[tuple[int, float]]]

    @classmethod
    def of(cls, body: PositionsReply, clock: ClockBounds) -> Positions:
        """From the reply; times are converted to this machine's clock."""
        shifts = {node: clock.correction_s(ahead_s) for node, ahead_s in body["clocks_ahead_s"].items()}
        written = {
            file: [(size, time + shifts[file.partition("/")[0]]) for size, time in writes]
            for file, writes in body["written"].items()
        }
        skipped = {file: [(begin, end) for begin, end in parts] for file, parts in body["skipped"].items()}
        return cls(body["offsets"], skipped, written)


@dataclass(frozen=True, slots=True)
class BatchLog:
    """The end of what the batch script of a Slurm job and Slurm itself wrote, and when it was last written, by the file system."""

    text: str
    written_s: float

    @property
    def of_last_attempt(self) -> str:
        """
        The part since the last attempt began: a requeue that ended an earlier one has not ended this one.

        Empty lines replace the rest, so that its lines keep their numbers.
        """
        start = max((found.end() for found in _ATTEMPT_BEGINS.finditer(self.text)), default=0)
        return "\n" * self.text.count("\n", 0, start) + self.text[start:]
