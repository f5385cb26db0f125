"""`orch ladder`: start the rungs of the debug ladder one after the other, up to the first that fails, and name its cause."""

from __future__ import annotations

import sys

from orchestrator.actions.ladder import Ladder, LadderOptions, Outcome, Rung, plan_ladder
from orchestrator.actions.launch_arguments import LaunchArguments
from orchestrator.cli.console import ProgressLine, print_error, print_text, warn, without_controls
from orchestrator.cli.diagnose import diagnose
from orchestrator.cli.failure import print_failure
from orchestrator.cli.rung import RungRun, Screen, run_rung
from orchestrator.errors import CTRL_C, OrchError


def ladder(arguments: LaunchArguments, options: LadderOptions, *, dry_run: bool) -> int:
    """Run the rungs until one fails; returns its exit code, 0 if all pass."""
    with ProgressLine() as progress:
        planned = plan_ladder(arguments, options, progress.update)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        print_text("".join(f"{_numbered(planned, rung)}: {rung}\n" for rung in planned.rungs))
        return 0
    screen, has_reported = Screen(planned.warnings), False
    for rung in planned.rungs:
        title = f"{_numbered(planned, rung)}: {rung}"
        try:
            ran = run_rung(planned.arguments_of(rung), planned.options, screen, title, must_report=has_reported)
        except KeyboardInterrupt:
            return CTRL_C
        has_reported = has_reported or ran.steps > 0
        _print_outcome(planned, rung, ran.outcome)
        if ran.outcome.exit_code:
            _diagnose(ran)
            _explain(planned, rung)
            return ran.outcome.exit_code
    print_text(f"{'proved':<11} {planned.rungs[-1].kind.proof}\n")
    return 0


def _numbered(planned: Ladder, rung: Rung) -> str:
    return f"rung {planned.rungs.index(rung) + 1} of {len(planned.rungs)}"


def _print_outcome(planned: Ladder, rung: Rung, outcome: Outcome) -> None:
    word = "FAILED" if outcome.exit_code else "passed"
    print_text(without_controls(f"{word:<11} {_numbered(planned, rung)}, {rung}: {outcome.text}") + "\n")


def _diagnose(ran: RungRun) -> None:
    """Print the diagnosis of the run of a rung that has failed; the owner makes one unless the run was stopped."""
    if ran.run is None:
        assert ran.error is not None, "the launch failed"
        print_error(ran.error)
    elif ran.diagnosed is not None and ran.diagnosed.failure is not None:
        print_failure(ran.diagnosed, sys.stdout)
    else:
        try:
            diagnose([ran.run], None, as_json=False)
        except OrchError as exc:
            print_error(exc)


def _explain(planned: Ladder, rung: Rung) -> None:
    """Print what the rungs before the failed one prove, and what it adds to them."""
    passed = planned.rungs[: planned.rungs.index(rung)]
    proved = f"{passed[-1].kind.proof} ({passed[-1]})" if passed else "nothing: the first rung failed"
    print_text(f"{'proved':<11} {proved}\n{'examine':<11} {rung.kind.suspects}\n")
