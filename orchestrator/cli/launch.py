"""Plan a run, and print its plan or start it by a scheduler: for `orch submit`, `orch rerun` and dry runs."""

from __future__ import annotations

from orchestrator.cli.console import ProgressLine, inform, print_text, warn
from orchestrator.errors import UsageError
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines


def launch(
    arguments: LaunchArguments, *, dry_run: bool, query: bool = False, follow: bool, watched: WatchedLines
) -> int:
    """Plan a run and start it unless `dry_run`; returns the exit code."""
    if query and not dry_run:
        raise UsageError("--query is for --dry-run", hint="add --dry-run, or omit --query: a launch queries the nodes")
    from orchestrator.launch.start import started  # the owner of a run over SSH imports what a launch needs
    from orchestrator.usecases.launch import transcript  # as above
    from orchestrator.usecases.launch.plan_launch import plan_launch  # as above
    from orchestrator.usecases.owner.reporter import start_reporter  # as above

    with ProgressLine() as progress:
        planned = plan_launch(arguments, progress.update)
    for note in planned.code_lines if not dry_run and not watched.quiet else ():
        inform(note)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        plan = planned.plan
        if query:
            from orchestrator.launch.query import queried_plan  # most dry runs connect to nothing

            with ProgressLine() as progress:
                plan = queried_plan(planned, progress.warn, progress.update)
        planned.close()
        print_text(transcript.dry_run_text(plan, planned.bundle.report))
        return 0
    with ProgressLine() as progress, started(planned, progress.warn, progress.update) as launched:
        progress.end()
        start_reporter(launched.folder)
        if launched.terminal_closed:
            return 0
        if not follow:
            print_text(f"{planned.plan.run_id}\n")
            return 0
        from orchestrator.cli.watch import watch  # imported while Slurm starts

        return watch(launched, watched)
