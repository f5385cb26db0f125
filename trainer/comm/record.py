"""The results of a benchmark so far, on rank 0: their file, and which ranks to leave out of the next rounds. No torch here."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from trainer.comm.config import CommConfig
from trainer.comm.groups import Round
from trainer.comm.results import FORMAT, UNSUPPORTED, line_of, results_of
from trainer.console import log_line
from trainer.io import replace_text

MOST_FAILURES = 3  # of a rank without any success; its other groups would fail as late
WRITE_EVERY_S = 2.0
MOST_WRITING = 0.05  # of the time: thousands of ranks have a large file, and all wait for it

RankReports = Mapping[int, Sequence[Mapping[str, Any]]]


class Record:
    """
    Collects the results of all rounds.

    `ranks` are the rows of all ranks with the tests of their devices; `labels` are further values for the file.
    """

    def __init__(
        self, path: Path, config: CommConfig, ranks: Sequence[Mapping[str, Any]], labels: Mapping[str, Any]
    ) -> None:
        self.path, self.config, self.ranks, self.labels = path, config, ranks, labels
        self.results: List[Dict[str, Any]] = []
        self._successes: Counter[int] = Counter()
        """Rank -> its groups that were measured."""
        self._failures: Counter[int] = Counter()
        self._written_s = 0.0
        """When the file was last written, by time.monotonic()."""
        self._write_s = 0.0
        """How long that took."""

    def add(self, round_: Round, groups: Sequence[Tuple[int, ...]], reports: RankReports) -> Dict[str, Any]:
        """
        Add the results of a round and print them; the file may be written later.

        Returns:
            The ranks to leave out from now on as `excluded`, and `has_failed`: a process group cannot be used further.
        """
        labels = {"groups": round_.kind, "op": round_.op, "dtype": self.config.dtype}
        has_failed = False
        for group in groups:
            results = results_of(labels, group, {rank: reports[rank] for rank in group if rank in reports})
            self.results += results
            for result in results:
                log_line(line_of(result))
            is_failure = any(result["error"] and UNSUPPORTED not in result["error"] for result in results)
            (self._failures if is_failure else self._successes).update(group)
            has_failed = has_failed or is_failure
        if time.monotonic() - self._written_s > max(WRITE_EVERY_S, self._write_s / MOST_WRITING):
            self.write()
        active = [rank for group in groups for rank in group]
        silent = [rank for rank in active if rank not in reports]
        hopeless = [rank for rank in active if self._failures[rank] >= MOST_FAILURES and not self._successes[rank]]
        for rank in hopeless:
            log_line(
                f"rank {rank} is left out from now on: {self._failures[rank]} groups with it failed, none succeeded"
            )
        return {"excluded": [*silent, *hopeless], "has_failed": has_failed}

    def failures(self) -> str:
        """Sum up what failed; "" if nothing did."""
        bad = [f"rank {row['rank']} on {row['node']}: {row['error']}" for row in self.ranks if row["error"]]
        bad += [line_of(result) for result in self.results if result["error"]]
        return f"{len(bad)} measurements failed; the first: {bad[0]}" if bad else ""

    def write(self) -> None:
        """Replace the file, which then has the rounds so far if a later one ends the run."""
        begun_s = time.monotonic()
        record = {
            "format": FORMAT,
            "settings": self.config.as_dict(),
            **self.labels,
            "ranks": self.ranks,
            "results": self.results,
        }
        replace_text(self.path, json.dumps(record))
        self._written_s = time.monotonic()
        self._write_s = self._written_s - begun_s


def rank_rows(reports: Mapping[int, Mapping[str, Any]], world_size: int) -> list[Dict[str, Any]]:
    """One row per rank, with its device test; a rank that has not come has an error."""
    absent = {"node": "", "local_rank": None, "test": {"error": "it did not start in time"}}
    rows = []
    for rank in range(world_size):
        found = reports.get(rank, absent)
        rows.append({"rank": rank, "node": found["node"], "local_rank": found["local_rank"], **found["test"]})
    return rows
