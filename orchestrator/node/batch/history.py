"""The attempts of a Slurm job so far, from the files of their agents in the run's folder."""

from __future__ import annotations

import math
import os
import time

from orchestrator.node.run.events import NodeHistory, State, cause_s, read_history
from orchestrator.node.run.retry import newest_step, reports_exhausted_memory, saved_step
from orchestrator.node.run.run_folder import node_folders, output_stem, read_progress
from orchestrator.node.system.files import read_json, tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.node.run.events import Event

POLL_S = 0.2
LAST_LINES = 10  # of a rank's errors, as over SSH
LAST_LINES_BYTES = 8192
EARLY_S = 5.0  # Slurm's clock may differ from this node's


class Attempt:
    """
    One attempt, which has ended or is ending. Times are seconds since the epoch, by the clock of the node that wrote them.

    Times of one node compare exactly, times of different nodes only as well as the cluster's clocks agree. `orch status` reads
    the same times (docs/decisions/027-clocks-of-a-slurm-job.md).
    """

    def __init__(self, folder: str) -> None:
        job = read_json(os.path.join(folder, "job.json")) or {}
        self.requeues: int = (job.get("slurm") or {}).get("requeues", 0)  # each resulted in another allocation
        folders = list(node_folders({"attempt_dir": folder, "nodes": None}))
        self._folders = dict(folders)
        self.nodes: dict[str, NodeHistory] = {node: read_history(path) for node, path in folders}
        reports = [report for _, path in folders for report in read_progress(path).values()]
        steps = [saved_step(report) for report in reports]
        self.saved = max((step for step in steps if step is not None), default=None)
        self.step = newest_step(reports)

    @property
    def started(self) -> set[str]:
        return {name for name, node in self.nodes.items() if node.has_started}

    @property
    def ends(self) -> dict[str, Event]:
        """Node -> its agent's last event, if its agent has ended."""
        return {name: node.finished for name, node in self.nodes.items() if node.finished is not None}

    @property
    def failures(self) -> list[tuple[float, str]]:
        """Time and node of each failure, the cause first: the others are its consequences."""
        return sorted((cause_s(end), node) for node, end in self.ends.items() if end["state"] == State.FAILED)

    @property
    def first_failed_node(self) -> str | None:
        """The node whose failure ended the attempt; None if no rank failed first."""
        return self.failures[0][1] if self.failures and not self.lost and not self.restart_requested else None

    @property
    def lost(self) -> set[str]:
        """The nodes whose agents wrote no last event (killed with their ranks, or cut off); empty if that is true of all."""
        # Slurm may kill agents that are ending their ranks because of a failure elsewhere.
        stopping = {name for name, node in self.nodes.items() if node.stops_s}
        without_end = self.started - set(self.ends) - stopping
        return without_end if without_end != self.started else set()

    @property
    def broken(self) -> set[str]:
        """The nodes that failed while their ranks ran: they were lost, or their agent was killed."""
        without_exit = {name for name, end in self.ends.items() if end["state"] == State.FAILED and end["exit"] is None}
        return self.lost | {name for name in without_exit if self.nodes[name].ranks}

    @property
    def first_failure_s(self) -> float:
        return self.failures[0][0] if self.failures else math.inf

    @property
    def first_request_s(self) -> float:
        """When the first rank exited that requested another attempt."""
        return min((time_s for node in self.nodes.values() for time_s in node.requeues_s), default=math.inf)

    @property
    def no_retry(self) -> bool:
        """True if a rank reported that a retry cannot help, or if memory was exhausted."""
        return any(node.no_retry for node in self.nodes.values()) or self._is_out_of_memory()

    def _is_out_of_memory(self) -> bool:
        """True if the first failed rank had exhausted memory, by the kind of the failure, its error or its last lines."""
        if not self.failures or self.first_request_s <= self.first_failure_s:
            return False
        node = self.failures[0][1]
        failed = self.ends[node].get("exit") or {}
        output = os.path.join(self._folders[node], f"{output_stem(failed.get('rank'))}.err")
        lines = "\n".join(tail(output, LAST_LINES_BYTES).splitlines()[-LAST_LINES:])
        return failed.get("kind") == "memory" or reports_exhausted_memory(f"{failed.get('error')}\n{lines}")

    @property
    def restart_requested(self) -> bool:
        """True if a rank requested another attempt before any failed: later failures are its consequences."""
        return not self.no_retry and self.first_request_s < math.inf and self.first_request_s <= self.first_failure_s

    @property
    def is_save_requested(self) -> bool:
        """True if the ranks were asked to save and end by `orch stop --save`."""
        return any(node.saving_ranks is not None for node in self.nodes.values())

    @property
    def stopped_first(self) -> bool:
        """True if an agent was stopped before any rank failed or requested another attempt."""
        first_stop_s = min((time_s for node in self.nodes.values() for time_s in node.stops_s), default=math.inf)
        return first_stop_s < min(self.first_failure_s, self.first_request_s)

    @property
    def was_warned(self) -> bool:
        return any(node.warned_s is not None for node in self.nodes.values())

    def is_done(self, nodes: int) -> bool:
        return len(self.ends) == nodes and all(end["state"] == State.DONE for end in self.ends.values())

    def reached_time_limit(self, warn_s: int, batch_host: str) -> bool:
        """
        True if the job that Slurm has ended was at its time limit and not cancelled: the warning is warn_s old.

        The batch host's warning counts, whose clock this is, if it took part in the attempt; else the latest warning.
        """
        warnings = {name: node.warned_s for name, node in self.nodes.items() if node.warned_s is not None}
        if not warnings:
            return False
        return time.time() >= warnings.get(batch_host, max(warnings.values())) + warn_s - EARLY_S


def wait_for_ends(folder: str, nodes: int, patience_s: float) -> Attempt:
    """Wait until the agents of all nodes have ended, at most patience_s; return the attempt."""
    deadline = time.monotonic() + patience_s
    while True:
        attempt = Attempt(folder)
        if len(attempt.ends) >= nodes or time.monotonic() >= deadline:
            return attempt
        time.sleep(POLL_S)
