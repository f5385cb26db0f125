"""The lines of a run that a reader wants: by node, rank, stream, time and text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.logs.lines import LogLines, Stream

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import Outputs


METRICS = re.compile(r"step=\d+ loss=\S+")
"""The line of the shared trainer on a rank's own loss; rank 0 prints the mean of all, with more values (trainer/metrics/jsonl.py)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted lines; None means no restriction."""

    nodes: frozenset[str] | None = None
    ranks: frozenset[int] | None = None
    stream: str | None = None
    earliest: float | None = None
    """Seconds since the epoch."""
    pattern: re.Pattern[str] | None = None
    has_events: bool = True
    """False to leave out the agents' lines."""
    has_routine: bool = True
    """False to leave out the agents' lines that every run without a failure has."""
    has_rank_metrics: bool = True
    """False to leave out the losses of single ranks, of which rank 0 prints the mean."""

    @property
    def outputs(self) -> Outputs:
        """The output files in which wanted lines can be, for a request to an endpoint."""
        return {
            "nodes": None if self.nodes is None else sorted(self.nodes),
            "ranks": None if self.ranks is None else sorted(self.ranks),
            "streams": None if self.stream is None else [self.stream],
        }

    def wants_output(self, node: str, rank: int | None, stream: Stream) -> bool:
        """True if wanted lines can be in this output file."""
        return (
            (self.nodes is None or node in self.nodes)
            and (self.ranks is None or rank in self.ranks)
            and self.stream in (None, stream)
        )

    def of(self, lines: LogLines) -> LogLines | None:
        """The wanted ones of these lines; None if there is none."""
        passes = (
            (self.nodes is None or lines.node in self.nodes)
            and (self.ranks is None or lines.rank in self.ranks)
            and (self.stream is None or lines.stream == self.stream)
            and (self.earliest is None or lines.time >= self.earliest)
            and (self.has_events or lines.stream != "event")
            and (self.has_routine or not lines.is_routine)
        )
        if not passes:
            return None
        is_of_rank = lines.rank and lines.stream == "out" and "step=" in lines.text
        leaves_metrics_out = is_of_rank and not self.has_rank_metrics
        if self.pattern is None and not leaves_metrics_out:
            return lines
        matches = [
            text
            for text in lines.text.split("\n")
            if (self.pattern is None or self.pattern.search(text))
            and not (leaves_metrics_out and METRICS.fullmatch(text))
        ]
        return replace(lines, text="\n".join(matches)) if matches else None
