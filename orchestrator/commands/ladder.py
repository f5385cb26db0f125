"""`orch ladder`: start the rungs of the debug ladder one after the other, up to the first that fails, and name its cause."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress

from orchestrator.actions.ladder import Ladder, LadderOptions, Outcome, Rung, StepLimit, outcome_of, plan_ladder
from orchestrator.actions.launch import sighup_interrupts, sigterm_interrupts
from orchestrator.actions.launch_arguments import LaunchArguments
from orchestrator.actions.runs import find_run
from orchestrator.actions.stop import stop
from orchestrator.actions.viewer import Owner
from orchestrator.commands.diagnose import diagnose
from orchestrator.commands.failure import print_failure
from orchestrator.console import ProgressLine, inform, print_error, print_text, warn, without_controls
from orchestrator.errors import CTRL_C, OrchError
from orchestrator.run import RunRecord, RunState


class _Screen:
    """Shows warnings, each once for all rungs; the lines of the ranks are for `orch logs`."""

    def __init__(self, shown: Iterable[str]) -> None:
        self._shown = set(shown)

    def write(self, lines: Iterable[object]) -> None:
        """Read the lines, and show none."""
        for _ in lines:
            pass

    def inform(self, text: str) -> None:
        """Show nothing."""

    def warn(self, text: str) -> None:
        """Print a warning that is new."""
        if text not in self._shown:
            self._shown.add(text)
            warn(text)


def ladder(arguments: LaunchArguments, options: LadderOptions, *, dry_run: bool) -> int:
    """Run the rungs until one fails; returns its exit code, 0 if all pass."""
    with ProgressLine() as progress:
        planned = plan_ladder(arguments, options, progress.update)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        print_text("".join(f"{_numbered(planned, rung)}: {rung}\n" for rung in planned.rungs))
        return 0
    screen, has_reported = _Screen(planned.warnings), False
    for rung in planned.rungs:
        try:
            with sighup_interrupts(), sigterm_interrupts():
                outcome, has_reported = _run(planned, rung, screen, has_reported=has_reported)
        except KeyboardInterrupt:
            return CTRL_C
        if outcome.exit_code:
            _explain(planned, rung)
            return outcome.exit_code
    print_text(f"{'proved':<11} {planned.rungs[-1].kind.proof}\n")
    return 0


def _numbered(planned: Ladder, rung: Rung) -> str:
    return f"rung {planned.rungs.index(rung) + 1} of {len(planned.rungs)}"


def _run(planned: Ladder, rung: Rung, screen: _Screen, *, has_reported: bool) -> tuple[Outcome, bool]:
    """Run one rung, and print its outcome; return it, and whether the program has reported steps on any rung so far."""
    with Owner.of_launch(planned.arguments_of(rung), follow=True, quiet=True) as owner:
        try:
            with ProgressLine() as progress:
                run = owner.until_launched(lambda _: None, screen.warn, progress.update)
        except OrchError as exc:
            if owner.is_interrupted:
                raise KeyboardInterrupt from exc
            outcome = Outcome("the launch failed", exc.exit_code)
            _print_outcome(planned, rung, outcome)
            print_error(exc)
            return outcome, has_reported
        record, limit = _follow(owner, planned, rung, run, screen=screen, must_report=has_reported)
        outcome = outcome_of(record, planned.options, limit.end, limit.steps)
        _print_outcome(planned, rung, outcome)
        if outcome.exit_code:
            _diagnose(owner, record)
    return outcome, has_reported or bool(limit.steps)


def _follow(
    owner: Owner, planned: Ladder, rung: Rung, run: str, *, screen: _Screen, must_report: bool
) -> tuple[RunRecord, StepLimit]:
    """Wait for the end of a rung; Ctrl-C, a closed terminal and any error end it. The shared trainer ends by itself."""
    try:
        inform(f"{_numbered(planned, rung)}: {rung}, run {run}")
        limit = StepLimit(run, planned.options, inform, must_report=must_report)
        with limit if planned.arguments.program is not None else nullcontext():
            return owner.to_end(screen), limit
    except BaseException as exc:
        cause = "interrupted" if isinstance(exc, KeyboardInterrupt) else "the ladder has ended"
        _inform_if_open(f"{cause}: run {run} of this rung is stopped")
        stop(find_run(run), _inform_if_open)
        raise


def _inform_if_open(text: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        inform(text)


def _print_outcome(planned: Ladder, rung: Rung, outcome: Outcome) -> None:
    word = "FAILED" if outcome.exit_code else "passed"
    print_text(without_controls(f"{word:<11} {_numbered(planned, rung)}, {rung}: {outcome.text}") + "\n")


def _diagnose(owner: Owner, record: RunRecord) -> None:
    """Print the diagnosis of the run of a rung that has failed; the owner makes one unless the run was stopped."""
    found = owner.diagnosed(warn) if record.state is RunState.FAILED else None
    if found is not None and found.failure is not None:
        print_failure(found, sys.stdout)
        return
    try:
        diagnose([record.id], None, as_json=False)
    except OrchError as exc:
        print_error(exc)


def _explain(planned: Ladder, rung: Rung) -> None:
    """Print what the rungs before the failed one prove, and what it adds to them."""
    passed = planned.rungs[: planned.rungs.index(rung)]
    proved = f"{passed[-1].kind.proof} ({passed[-1]})" if passed else "nothing: the first rung failed"
    print_text(f"{'proved':<11} {proved}\n{'examine':<11} {rung.kind.suspects}\n")
