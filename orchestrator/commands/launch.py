"""`orch ssh-launch` and `orch submit`: launch a run, and watch it or print its id."""

from __future__ import annotations

from orchestrator.actions import transcript
from orchestrator.actions.launch import plan_launch, started
from orchestrator.actions.request import LaunchArguments
from orchestrator.console import ProgressLine, print_text, warn


def launch(arguments: LaunchArguments, *, dry_run: bool, follow: bool, quiet: bool = False) -> int:
    """Plan a run and start it unless `dry_run`; returns the exit code."""
    with ProgressLine() as progress:
        planned = plan_launch(arguments, progress.update)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        planned.close()
        print_text(transcript.dry_run_text(planned.plan))
        return 0
    with ProgressLine() as progress, started(planned, progress.warn, progress.update) as launched:
        progress.end()
        if launched.terminal_closed:
            return 0
        if not follow:
            print_text(f"{planned.plan.run_id}\n")
            return 0
        from orchestrator.commands.watch import watch  # noqa: PLC0415  imported while Slurm or the nodes start

        return watch(launched, quiet=quiet)
