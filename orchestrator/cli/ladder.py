"""`orch ladder`: start the rungs of the debug ladder one after the other, up to the first that fails, and name its cause."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, print_error, print_text, warn, without_controls
from orchestrator.cli.diagnose import print_diagnosis
from orchestrator.cli.failure import print_failure
from orchestrator.errors import CTRL_C, OrchError, UsageError
from orchestrator.usecases.launch_arguments import LaunchArguments

if TYPE_CHECKING:
    from orchestrator.usecases.trials.ladder import Ladder, Rung


@click.command(cls=options.LaunchCommand)
@options.launch
@click.option("--slurm", "is_through_slurm", is_flag=True, help="Submit each rung as a job; as submit does.")
@options.slurm
@options.dry_run
@click.option(
    "--steps", type=options.WholeNumber(min=1), metavar="N", default=5, show_default=True, help="Steps of each rung."
)
@click.option("--limit", metavar="SPAN", default="2m", show_default=True, help="Time limit of each rung.")
def ladder(
    program: tuple[str, ...] | None, *, is_through_slurm: bool, dry_run: bool, steps: int, limit: str, **typed: Any
) -> int:
    """
    Run a few steps on 1 rank, 2 ranks, one full node, two nodes and all nodes, up to the first failure.

    The options are those of ssh-launch, and with --slurm or --here those of submit; --debug is always on.
    """
    from orchestrator.usecases.trials.ladder import LadderOptions, plan_ladder

    is_slurm = is_through_slurm or typed["here"]
    if typed["slurm"] and not is_slurm:
        option = typed["slurm"][0][0]
        raise UsageError(f"{option} is for rungs through Slurm", hint=f"add --slurm or --here, or omit {option}")
    arguments = LaunchArguments("slurm" if is_slurm else "ssh", program=program, **typed)
    with ProgressLine() as progress:
        planned = plan_ladder(arguments, LadderOptions.of(steps, limit), progress.update)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        print_text("".join(f"{_numbered(planned, rung)}: {rung}\n" for rung in planned.rungs))
        return 0
    return _climb(planned)


def _climb(planned: Ladder) -> int:
    """Run the rungs until one fails; returns its exit code, 0 if all pass."""
    from orchestrator.cli.rung import Screen, run_rung

    screen, has_reported = Screen(planned.warnings), False
    for rung in planned.rungs:
        number = _numbered(planned, rung)
        title = f"{number}: {rung}"
        try:
            ran = run_rung(planned.arguments_of(rung), planned.options, screen, title, must_report=has_reported)
        except KeyboardInterrupt:
            return CTRL_C
        has_reported = has_reported or ran.steps > 0
        word = "FAILED" if ran.outcome.exit_code else "passed"
        print_text(without_controls(f"{word:<11} {number}, {rung}: {ran.outcome.text}") + "\n")
        if ran.outcome.exit_code:
            if ran.run is None:
                assert ran.error is not None, "the launch failed"
                print_error(ran.error)
            elif (
                ran.diagnosed is not None and ran.diagnosed.failure is not None
            ):  # by the owner, unless the run was stopped
                print_failure(ran.diagnosed, sys.stdout)
            else:
                try:
                    print_diagnosis([ran.run], None, as_json=False)
                except OrchError as exc:
                    print_error(exc)
            passed = planned.rungs[: planned.rungs.index(rung)]
            proved = f"{passed[-1].kind.proof} ({passed[-1]})" if passed else "nothing: the first rung failed"
            print_text(f"{'proved':<11} {proved}\n{'examine':<11} {rung.kind.suspects}\n")
            return ran.outcome.exit_code
    print_text(f"{'proved':<11} {planned.rungs[-1].kind.proof}\n")
    return 0


def _numbered(planned: Ladder, rung: Rung) -> str:
    return f"rung {planned.rungs.index(rung) + 1} of {len(planned.rungs)}"
