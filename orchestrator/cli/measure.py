"""Run the benchmark of the links to its end, for `orch bench comm` and `orch check --level full`."""

from __future__ import annotations

import io
import sys
from typing import Any

from orchestrator.cli.console import ProgressLine, warn
from orchestrator.cli.watch import show, watch
from orchestrator.errors import CLOSED_PIPE, CTRL_C, UsageError
from orchestrator.launch.start import started
from orchestrator.records.runs import find_run
from orchestrator.run import RunState
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines
from orchestrator.usecases.owner.viewer import Owner
from orchestrator.usecases.trials import benchmark


def measure(launch: LaunchArguments, *, quiet: bool, has_lines: bool = True) -> tuple[int, dict[str, Any] | None]:
    """Run the benchmark to the end; the exit code and the results, if any. `has_lines`: print lines of ranks and warnings of the launch."""
    stream, lines = sys.stderr if has_lines else io.StringIO(), WatchedLines(quiet=quiet)
    if launch.by_scheduler:
        with ProgressLine() as progress:
            planned = benchmark.plan_benchmark(launch, progress.update)
        for warning in planned.warnings if has_lines else ():
            warn(warning)
        with ProgressLine() as progress, started(planned, progress.warn, progress.update) as launched:
            progress.end()
            run, code = planned.plan.run_id, watch(launched, lines, stream=stream)
    else:
        with Owner.of_launch(launch, follow=True, watched=lines, is_benchmark=True) as owner:
            with ProgressLine() as progress:
                on_planned = progress.warn if has_lines else lambda _: None
                run = owner.until_launched(on_planned, progress.warn, progress.update)
            code = show(run, owner, lines, stream=stream)
    if code in (CTRL_C, CLOSED_PIPE):
        return code, None
    state = find_run(run).read().state
    if not state.ended or state is RunState.STOPPED:
        return code, None
    try:
        return code, benchmark.read_results(run)
    except UsageError:
        if code:  # it failed before the first result
            return code, None
        raise
