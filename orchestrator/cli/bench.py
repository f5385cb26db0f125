"""`orch bench comm`: measure the bandwidth between ranks, and print it as a table, JSON or a picture."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from orchestrator.actions import benchmark
from orchestrator.actions.launch import started
from orchestrator.actions.launch_arguments import LaunchArguments
from orchestrator.actions.viewer import Owner
from orchestrator.cli.console import ProgressLine, inform, print_json, print_table, warn
from orchestrator.cli.watch import show, watch
from orchestrator.errors import CLOSED_PIPE, CTRL_C, UsageError
from orchestrator.records.runs import find_run
from orchestrator.run import RunState

COLUMNS = ("OP", "RANKS", "SIZE", "DTYPE", "TIME", "ALGBW", "BUSBW", "ERROR")


def bench_comm(launch: LaunchArguments, *, as_json: bool, png: Path | None, quiet: bool) -> int:
    """
    Start the benchmark, follow it and print the results; returns the run's exit code.

    Raises:
        UsageError: there is one rank, a setting is wrong, or the picture cannot be drawn.
    """
    if png is not None:
        benchmark.check_plot(png)
    code, results = measure(launch, quiet=quiet)
    if results is None:
        return code
    found = benchmark.findings(results)
    if as_json:
        print_json({**results, "findings": [finding.to_json() for finding in found]})
    else:
        print_table(COLUMNS, list(_rows(results)))
        inform("bandwidths in GB/s (1e9 bytes/s); busbw is comparable with the link's rate, as in nccl-tests")
    if png is not None:
        from orchestrator.actions.benchmark_plot import plot  # matplotlib is optional

        plot(results, png)
    for finding in found:
        warn(f"{finding.text} ({finding.evidence})" if finding.evidence else finding.text)
    return code


def measure(launch: LaunchArguments, *, quiet: bool, has_lines: bool = True) -> tuple[int, dict[str, Any] | None]:
    """
    Run the benchmark to the end; returns the exit code and the results, None if there are none.

    Args:
        quiet: print only the lines of ranks, warnings, and the outcome of a run that is not done.
        has_lines: print the lines of ranks, and the warnings of the launch.
    """
    stream = sys.stderr if has_lines else io.StringIO()
    run, code = (_over_ssh if launch.launcher == "ssh" else _by_slurm)(launch, stream, quiet=quiet, has_lines=has_lines)
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


def _over_ssh(launch: LaunchArguments, stream: TextIO, *, quiet: bool, has_lines: bool) -> tuple[str, int]:
    with Owner.of_launch(launch, follow=True, quiet=quiet, is_benchmark=True) as owner:
        with ProgressLine() as progress:
            on_planned = progress.warn if has_lines else lambda _: None
            run = owner.until_launched(on_planned, progress.warn, progress.update)
        return run, show(run, owner.to_end, partial(owner.diagnosed, warn), quiet=quiet, stream=stream)


def _by_slurm(launch: LaunchArguments, stream: TextIO, *, quiet: bool, has_lines: bool) -> tuple[str, int]:
    with ProgressLine() as progress:
        planned = benchmark.plan_benchmark(launch, progress.update)
    for warning in planned.warnings if has_lines else ():
        warn(warning)
    with ProgressLine() as progress, started(planned, progress.warn, progress.update) as launched:
        progress.end()
        return planned.plan.run_id, watch(launched, quiet=quiet, stream=stream)


def _rows(results: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    for result in results["results"]:
        figures: tuple[object, ...] = ("", "", "")
        if "time_s" in result:
            figures = _time(result["time_s"]), f"{result['algbw']:.3g}", f"{result['busbw']:.3g}"
        ranks = _ranks(result["ranks"], results["ranks"])
        yield (
            result["op"],
            ranks,
            benchmark.size_text(result["bytes"]),
            result["dtype"],
            *figures,
            result["error"] or None,
        )


def _ranks(ranks: Sequence[int], known: Sequence[Mapping[str, Any]]) -> str:
    """The nodes of two ranks, or the first and last rank of a larger group."""
    if len(ranks) == 2:  # noqa: PLR2004  a pair
        return "-".join(f"{known[rank]['node']}:{known[rank]['local_rank']}" for rank in ranks)
    return f"{ranks[0]}-{ranks[-1]}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004  a millisecond
