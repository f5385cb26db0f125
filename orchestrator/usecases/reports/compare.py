"""Compare several runs, from their records alone."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.usecases.reports.diff import TOPICS, RecordedRun, diff, seconds_to_end

__all__ = ["RESULTS", "compare", "seconds_to_end"]

RESULTS = ("steps", "first_loss", "last_loss", "tokens_per_s")
"""The results in `summary` of a record that a list of runs shows."""


def compare(runs: Sequence[RecordedRun]) -> list[dict[str, object]]:
    """
    The values by which runs differ from the first one.

    Returns:
        Mappings with `topic`, `name` and the value of each run under its id, ordered by topic.
    """
    first, *later = runs
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for run in later:
        for difference in diff(first, run):
            key = difference.topic, difference.name
            if key not in rows:
                rows[key] = {"topic": key[0], "name": key[1], **{each.record.id: difference.first for each in runs}}
            rows[key][run.record.id] = difference.second
    return sorted(rows.values(), key=lambda row: TOPICS.index(str(row["topic"])))
