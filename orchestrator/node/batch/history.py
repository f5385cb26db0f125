"""How the attempts of a Slurm job came to their ends, by what their agents left in the run's folder."""

from __future__ import annotations

import os
import time

from orchestrator.node.events import NO_RETRY, REQUEUE, read_events
from orchestrator.node.files import read_json
from orchestrator.node.run_folder import node_folders

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every batch script some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

POLL_S = 0.2
EARLY_S = 5.0  # Slurm's clock is not this one's


class Ending:
    """How an attempt came to its end. Times are seconds since the epoch."""

    def __init__(self, folder: str) -> None:
        job = read_json(os.path.join(folder, "job.json")) or {}
        self.requeues: int = (job.get("slurm") or {}).get("requeues", 0)  # each had other nodes to choose from
        self.started: list[str] = []  # the nodes whose agents began
        self.training: set[str] = set()  # those whose ranks did
        self.told: set[str] = set()  # those that were there when the others' failure had ended them
        self.words: dict[str, dict[str, Any]] = {}  # node -> its agent's last word, for those that had one
        self.stops_s: list[float] = []  # when agents were told to stop, or stopped their ranks themselves
        self.asked_s: list[float] = []  # when ranks left that want another attempt
        self.warned_s: float | None = None
        self.no_retry = False
        self.saved: int | None = None
        for node, path in node_folders({"attempt_dir": folder, "nodes": None}):
            for event in read_events(path):
                self.take_in(node, event)
            self.take_in_progress(os.path.join(path, "progress"))

    def take_in(self, node: str, event: dict[str, Any]) -> None:
        if event["event"] == "agent-started":
            self.started.append(node)
            self.words.pop(node, None)
        elif event["event"] == "agent-finished":
            self.words[node] = event
        elif event["event"] == "warned":
            self.warned_s = event["time"]
        elif event["event"] == "rank-started":
            self.training.add(node)
        elif event["event"] == "stopping":
            self.told.add(node)
            self.stops_s.append(event["time"])
        elif event["event"] == "rank-exited" and not event["done"]:
            self.no_retry |= event["code"] == NO_RETRY
            if event["code"] == REQUEUE:
                self.asked_s.append(event["time"])

    def take_in_progress(self, folder: str) -> None:
        """The newest step that is saved; of programs that do not tell about saving, the newest step."""
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            found = read_json(os.path.join(folder, name)) or {}
            step = found.get("saved", found.get("step"))
            if name.endswith(".json") and isinstance(step, int):
                self.saved = max(step, self.saved or 0)

    @property
    def failures(self) -> list[tuple[float, str]]:
        """When and where it failed, the cause first: the rest are its consequences."""
        failed = [(node, word) for node, word in self.words.items() if word["state"] == "FAILED"]
        return sorted(((word["exit"] or word)["time"], node) for node, word in failed)

    @property
    def culprit(self) -> str | None:
        """The node whose failure ended the attempt; None where no rank failed first."""
        return self.failures[0][1] if self.failures and not self.lost and not self.asks_for_more() else None

    @property
    def lost(self) -> set[str]:
        """The nodes that fell silent, and not at the others' end: killed with all that ran there, or cut off."""
        silent = set(self.started) - set(self.words) - self.told
        return silent if silent != set(self.started) else set()

    @property
    def broken(self) -> set[str]:
        """The nodes that failed under their ranks: lost, or their agent was killed."""
        alone = {node for node, word in self.words.items() if word["state"] == "FAILED" and word["exit"] is None}
        return self.lost | (alone & self.training)

    @property
    def told_to_stop(self) -> bool:
        """Whether somebody wanted an end before a rank had failed, or had asked for another attempt."""
        own = min([*self.asked_s, *(failed_s for failed_s, _ in self.failures)], default=time.time())
        return min(self.stops_s, default=own) < own

    def is_done(self, nodes: int) -> bool:
        return len(self.words) == nodes and {word["state"] for word in self.words.values()} == {"DONE"}

    def asks_for_more(self) -> bool:
        """Whether a rank asked for another attempt before any had failed: what fails after that is a consequence."""
        first_failed_s = min((failed_s for failed_s, _ in self.failures), default=time.time())
        return bool(self.asked_s) and not self.no_retry and min(self.asked_s) <= first_failed_s

    def reached_time_limit(self, warn_s: int) -> bool:
        """Whether a job that Slurm has ended was at its time limit, and not cancelled: after a warning in due time."""
        return self.warned_s is not None and time.time() >= self.warned_s + warn_s - EARLY_S


def last_ending(folder: str, nodes: int, patience_s: float) -> Ending:
    """The ending with the last words of all nodes, or without those that are still missing after a while."""
    deadline = time.monotonic() + patience_s
    while len((ending := Ending(folder)).words) < nodes and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return ending


def barren(endings: Sequence[Ending]) -> int:
    """How many of the last attempts, in order, made no progress: saved nothing new, or say nothing and were not even warned."""
    best, count = 0, 0
    for ending in endings:
        progress = ending.warned_s is not None if ending.saved is None else ending.saved > best
        count = 0 if progress else count + 1
        best = max(best, ending.saved or 0)
    return count
