"""Run one rung of a debug ladder to its end, for `orch ladder` and `orch diagnose --prove`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from orchestrator.cli.console import ProgressLine, inform, warn
from orchestrator.cli.watch import WatchedRun
from orchestrator.errors import Interrupted, OrchError
from orchestrator.launch.planned import Launched
from orchestrator.launch.signals import sighup_interrupts, sigterm_interrupts
from orchestrator.launch.start import started
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines
from orchestrator.usecases.owner.viewer import Owner
from orchestrator.usecases.runs.stop import stop
from orchestrator.usecases.trials.ladder import LadderOptions, Outcome, StepLimit, outcome_of


class Screen:
    """Shows messages, and each warning once for all rungs; the lines of the ranks are for `orch logs`."""

    def __init__(self, shown: Iterable[str]) -> None:
        self._shown = set(shown)

    def write(self, lines: Iterable[object]) -> None:
        """Read the lines, and show none."""
        for _ in lines:
            pass

    def inform(self, text: str) -> None:
        """Print a message, such as the state of a job that waits in the queue."""
        inform(text)

    def warn(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            warn(text)

    def show(self, live: object) -> None:
        """Show no state: a rung is short."""


@dataclass(frozen=True, slots=True)
class RungRun:
    """The run of a rung, which has ended or could not be launched."""

    outcome: Outcome
    run: str | None = None
    """The id of the run; None if the launch failed."""
    diagnosed: RunRecord | None = None
    """The record of a run that has failed, with its diagnosis, if there is one."""
    steps: int = 0
    """The last step that a rank of a user's program has reported; 0 if none has."""
    took_s: float = 0.0
    """The time from the start of the ranks to the end."""
    error: OrchError | None = None
    """The error by which the launch failed; None if it succeeded."""


def run_rung(
    arguments: LaunchArguments, options: LadderOptions, screen: Screen, title: str, *, must_report: bool
) -> RungRun:
    """Launch a rung, and wait for its end; `must_report`: no steps mean a hang. KeyboardInterrupt once an interrupted run is stopped."""
    launch = _submit if arguments.by_scheduler else _launch_by_owner
    with sighup_interrupts(), sigterm_interrupts(), ExitStack() as stack:
        try:
            launched = stack.enter_context(launch(arguments, screen))
        except OrchError as exc:
            return RungRun(Outcome("the launch failed", exc.exit_code), error=exc)
        record, limit = _follow(launched, arguments, options, title=title, must_report=must_report)
        took_s = time.monotonic() - limit.began_s
        outcome = outcome_of(record, options, limit.end, limit.steps)
        is_diagnosed = outcome.exit_code and record.state is RunState.FAILED
        found = launched.diagnosed(warn) if is_diagnosed else None
        return RungRun(outcome, launched.run, found, max(limit.steps.values(), default=0), took_s)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A rung that has been launched."""

    run: str
    to_end: Callable[[], RunRecord]
    """Follows it to its end."""
    diagnosed: Callable[[Callable[[str], None]], RunRecord | None]
    """Returns the record of a run that has failed, with its diagnosis."""
    submitted: Launched | None = None
    """The run through Slurm, which this process follows; None if another process owns the run."""


@contextmanager
def _launch_by_owner(arguments: LaunchArguments, screen: Screen) -> Iterator[_Launched]:
    """Launch a rung over SSH or on this machine; KeyboardInterrupt if that is interrupted."""
    with Owner.of_launch(arguments, follow=True, watched=WatchedLines(quiet=True)) as owner:
        try:
            with ProgressLine() as progress:
                run = owner.until_launched(lambda _: None, screen.warn, progress.update)
        except OrchError as exc:
            if owner.is_interrupted:
                raise KeyboardInterrupt from exc
            raise
        yield _Launched(run, lambda: owner.to_end(screen), owner.diagnosed)


@contextmanager
def _submit(arguments: LaunchArguments, screen: Screen) -> Iterator[_Launched]:
    """Launch a rung through Slurm; KeyboardInterrupt if that is interrupted."""
    with ExitStack() as stack:
        try:
            with ProgressLine() as progress:
                planned = plan_launch(arguments, progress.update)
                launched = stack.enter_context(started(planned, screen.warn, progress.update))
        except Interrupted as exc:
            raise KeyboardInterrupt from exc
        run = WatchedRun(launched, WatchedLines(quiet=True))
        yield _Launched(launched.folder.path.name, lambda: run.to_end(screen), run.diagnosed, launched)


def _follow(
    launched: _Launched, arguments: LaunchArguments, options: LadderOptions, *, title: str, must_report: bool
) -> tuple[RunRecord, StepLimit]:
    """Wait for the end of a rung; Ctrl-C, a closed terminal and any error end it. The shared trainer ends by itself."""
    run = launched.run
    try:
        inform(f"{title}, run {run}")
        launcher = launched.submitted.launcher if launched.submitted else None
        limit = StepLimit(run, options, _inform_if_open, must_report=must_report, launcher=launcher)
        with limit if arguments.program is not None else nullcontext():
            return launched.to_end(), limit
    except BaseException as exc:
        cause = "interrupted" if isinstance(exc, KeyboardInterrupt) else "the command has ended"
        _inform_if_open(f"{cause}: run {run} of this rung is stopped")
        stop(find_run(run), _inform_if_open)
        raise


def _inform_if_open(text: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        inform(text)
