"""One run: its state, its results, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.api.lines import LogLine, lines_of
from orchestrator.api.tables import Rows, html_table
from orchestrator.backoff import backoff
from orchestrator.errors import LaunchError, NodesError, RunNotFound, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.progress import no_progress
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.durations import clock
from orchestrator.usecases.runs import stop
from orchestrator.usecases.runs.refresh import is_kept_up_to_date, refresh

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from orchestrator.usecases.reports.copy import Copied  # most programs copy nothing
    from orchestrator.usecases.reports.log_reader import Viewer  # nor do they read logs

LONGEST_POLL_S = 5.0
UNREACHABLE_S = 60.0


def _ignore(_text: str) -> None:
    """Take a message that nobody wants."""


@dataclass(frozen=True, slots=True)
class Run:
    """
    A run that was launched from this machine: `Run("latest")`, or an id, the beginning of one, or a name; RunNotFound otherwise.

    It outlives the Python process. `with run:` stops it if the block raises an exception; `await run` is `wait` for coroutines.
    """

    id: str
    warnings: tuple[str, ...] = ()
    """Warnings of the launch, one sentence each."""

    def __post_init__(self) -> None:
        """Resolve the name, so that the object keeps its run whatever is launched later."""
        object.__setattr__(self, "id", find_run(self.id).path.name)

    @property
    def record(self) -> RunRecord:
        """The record on this machine; nothing is queried."""
        return self._folder.read()

    def status(self) -> RunRecord:
        """Query nodes and scheduler; returns the updated record."""
        return refresh(self._folder).record

    def done(self) -> bool:
        """
        Return whether the run is over, in whichever state; nodes and scheduler are queried if it has no supervisor.

        Raises:
            LaunchError: as from `wait`.
        """
        waiting = _Waiting(self._folder)
        waiting.look()
        return waiting.is_over

    def wait(self, timeout_s: float | None = None, on_change: Callable[[RunRecord], object] | None = None) -> RunRecord:
        """
        Wait until the run is over; returns its record.

        While the run has a supervisor, only the record is read; otherwise nodes and scheduler are queried.

        Args:
            on_change: takes the record now, and whenever the state or the attempt has changed.

        Raises:
            TimeoutError: it is not over after `timeout_s`.
            LaunchError: it has failed on one node, and no supervisor ends it on the others.
            NodesError: no node has answered for a minute, and the run has no supervisor.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiting, pauses, reported = _Waiting(self._folder), backoff(LONGEST_POLL_S), None
        while True:
            record = waiting.look()
            state = record.state, record.attempt
            if on_change is not None and state != reported:
                on_change(record)
            reported = state
            if waiting.is_over:
                return record
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.id} is {record.state.value} after {timeout_s:g} s")
            time.sleep(next(pauses))

    def __await__(self) -> Generator[Any, None, RunRecord]:
        return self._until_over().__await__()

    async def _until_over(self) -> RunRecord:
        import asyncio  # few programs have a loop

        waiting, pauses = _Waiting(self._folder), backoff(LONGEST_POLL_S)
        while True:
            record = await asyncio.to_thread(waiting.look)
            if waiting.is_over:
                return record
            await asyncio.sleep(next(pauses))

    def stop(
        self, *, save: bool = False, grace_s: float | None = None, on_message: Callable[[str], None] = _ignore
    ) -> RunRecord:
        """
        End the run on every node; returns its record.

        Args:
            save: let the ranks save before, as `orch stop --save`.
            grace_s: with `save`, the time that they have to save and end; by default 10 minutes.
            on_message: takes messages, such as that the program cannot be asked to save.

        Raises:
            LaunchError: some processes could not be ended, and each is named.
        """
        if grace_s is not None and not save:
            raise UsageError("grace_s is for save=True", hint="add save=True, or omit grace_s")
        if not save:
            return stop.stop(self._folder, on_message)
        from orchestrator.usecases.runs.save import DEFAULT_GRACE_S, save_and_stop

        return save_and_stop(self._folder, DEFAULT_GRACE_S if grace_s is None else grace_s, on_message)

    def logs(
        self,
        *,
        follow: bool = False,
        nodes: str | None = None,
        ranks: int | str | None = None,
        grep: str | None = None,
        tail: int | None = None,
        since: str | None = None,
        stream: str | None = None,
        on_message: Callable[[str], None] = _ignore,
    ) -> Iterator[LogLine]:
        """
        Yield the merged lines of all nodes and ranks; the parameters are as the options of `orch logs`.

        Args:
            follow: continue until the run ends.
            ranks: such as 3 or "0-7".
            tail: only the last lines of those so far.
            on_message: takes the messages between the lines, such as that a node does not answer at present.

        Raises:
            UsageError: the run has no such node, rank or stream.
            LaunchError: lines are missing, as nodes could not be read or have lost their logs; after the last line.
        """
        if tail is not None and tail < 0:
            raise UsageError(f"tail={tail}", hint="give the number of lines, from 0 on")
        from orchestrator.usecases.launch.show_logs import show_logs
        from orchestrator.usecases.reports.logs import Filter

        wanted = Filter(nodes, None if ranks is None else str(ranks), grep, since, stream)

        def read(viewer: Viewer) -> None:
            with closing(launcher_for(self._folder.read_plan())) as launcher:
                shown = show_logs(self._folder, launcher, viewer, wanted, tail=tail, follow=follow)
            if shown.errors:
                raise shown.errors[-1]

        return lines_of(read, on_message)

    def metrics(self) -> Rows:
        """
        Read the values that the shared trainer has logged, a row per step; no rows before the first step.

        Raises:
            UsageError: the run has no such file.
            NodesError, NodeError: the node of rank 0 cannot be read.
        """
        from orchestrator.usecases.reports.metrics_file import metrics_path, read_metrics

        plan = self._folder.read_plan()
        if metrics_path(plan) is None:
            text = f"run {self.id} has no metrics.jsonl in its folder: only the shared trainer writes it, unless `out` is elsewhere"
            hint = "copy() copies the files of a program; record.summary has the results that it has reported"
            raise UsageError(text, hint=hint)
        with closing(launcher_for(plan)) as launcher:
            return Rows(read_metrics(launcher, plan))

    def copy(self, path: str, destination: str | Path = ".", *, nodes: str | None = None) -> list[Copied]:
        """
        Copy a path of the run from all nodes that have it: from one node to DESTINATION/NAME, from several to DESTINATION/NODE/NAME.

        Args:
            path: relative to the folder that the ranks run in, to the node's folder or to the run's folder.
            nodes: only from these, such as "n0,n[2-3]".

        Raises:
            UsageError: no node has the path, the run has no such node, or a target exists.
            NodesError: nodes could not be read; what was copied from the others stays.
        """
        from orchestrator.usecases.reports.copy import copy

        return copy(self.id, path, Path(destination), nodes, on_progress=no_progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()

    def _repr_html_(self) -> str:
        try:
            return html_table(_fields(self.record))
        except RunNotFound as exc:
            return html_table([("run", self.id), ("", str(exc))])

    @property
    def _folder(self) -> RunFolder:
        return find_run(self.id)


def _fields(record: RunRecord) -> Iterator[tuple[str, object]]:
    """The fields of a record that a notebook shows; nothing is queried."""
    from orchestrator.usecases.reports.diff import RESULTS, seconds_to_end

    yield "run", record.id
    yield "state", record.state.value + (f", attempt {record.attempt}" if record.attempt > 1 else "")
    ended_s = seconds_to_end(record)
    fields = {
        "message": record.message,
        "time": None if ended_s is None else clock(ended_s),
        "note": record.note,
        "tags": record.tags,
        **record.swept,
        **{name: record.summary.get(name) for name in RESULTS},
    }
    if record.failure is not None:
        fields |= {"cause": record.failure.cause, "next": next(iter(record.failure.remedy), None)}
    yield from ((name, value) for name, value in fields.items() if value)


class _Waiting:
    """Looks at a run until it is over; the pauses between two looks are up to the caller."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._answered_s = time.monotonic()
        self.is_over = False

    def look(self) -> RunRecord:
        """
        Return the record. If the run has no supervisor, nodes and scheduler are queried; no answer at present leaves it as it is.

        Raises:
            LaunchError: the run has failed on one node, and no supervisor ends it on the others.
            NodesError: no node has answered for a minute.
        """
        is_up_to_date = is_kept_up_to_date(self._folder)  # before the read: the supervisor may end in between
        record = self._folder.read()
        if not record.state.ended and not is_up_to_date:
            try:
                refreshed = refresh(self._folder)
            except NodesError:
                if time.monotonic() - self._answered_s > UNREACHABLE_S:
                    raise
            else:
                record, self._answered_s = refreshed.record, time.monotonic()
                if not record.state.final and (warning := refreshed.not_being_ended()):
                    raise LaunchError(f"{record.message}: {warning}")
            self.is_over = record.state is RunState.LOST
        self.is_over |= record.state.ended
        return record
