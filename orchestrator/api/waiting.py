"""Look at a run until it is over; the pauses between two looks are up to the caller."""

from __future__ import annotations

import time

from orchestrator.errors import LaunchError, NodesError
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.runs.refresh import is_kept_up_to_date, refresh

UNREACHABLE_S = 60.0


class Waiting:
    """The wait for one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._answered_s = time.monotonic()
        self.is_over = False

    def look(self) -> RunRecord:
        """
        Return the record. If the run has no supervisor, nodes and scheduler are queried.

        Raises:
            LaunchError: the run has failed on one node, and no supervisor ends it on the others.
            NodesError: no node has answered for a minute.
        """
        is_up_to_date = is_kept_up_to_date(self._folder)  # before the read: the supervisor may end in between
        record = self._folder.read()
        if not record.state.ended and not is_up_to_date:
            record = self._refreshed(record)
            self.is_over = record.state is RunState.LOST
        self.is_over |= record.state.ended
        return record

    def _refreshed(self, record: RunRecord) -> RunRecord:
        """The record after a query; the same if no node answers at present."""
        try:
            refreshed = refresh(self._folder)
        except NodesError:
            if time.monotonic() - self._answered_s > UNREACHABLE_S:
                raise
            return record
        self._answered_s = time.monotonic()
        if not refreshed.record.state.final and (warning := refreshed.not_being_ended()):
            raise LaunchError(f"{refreshed.record.message}: {warning}")
        return refreshed.record
