"""`orch bench comm`: measure the bandwidth between ranks, and print it as a table, JSON or a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.console import inform, print_json, print_table, warn
from orchestrator.cli.groups import Group
from orchestrator.run import LauncherName

COLUMNS = ("OP", "RANKS", "SIZE", "DTYPE", "TIME", "ALGBW", "BUSBW", "ERROR")


@click.group(cls=Group)
def bench() -> None:
    """Measure the nodes of an inventory."""


@bench.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@options.inventory
@options.nodes
@options.shape
@click.option("--op", metavar="LIST", help="all-reduce, all-gather, reduce-scatter, broadcast, send-recv.")
@click.option("--sizes", metavar="SIZES", help="Bytes, as in 4K,1M or FIRST:LAST[:FACTOR]; default: 1K:256M:4.")
@click.option("--dtype", metavar="TYPE", help="fp32 (default), bf16 or fp16.")
@click.option("--pairs", is_flag=True, help="Measure each pair of ranks instead of all ranks together.")
@click.option("--slurm", "by_slurm", is_flag=True, help="Start it through Slurm.")
@click.option("--png", type=options.PATH, metavar="FILE", help="Draw bandwidth by size, or a heat map of the pairs.")
@options.quiet
@options.as_json
def comm(
    settings: tuple[str, ...],
    *,
    by_slurm: bool,
    inventory: str | None,
    nodes: str | None,
    shape: str | None,
    pairs: bool,
    png: Path | None,
    quiet: bool,
    as_json: bool,
    **typed: str | None,
) -> int:
    """Measure collectives and point to point between ranks, as nccl-tests does."""
    from orchestrator.cli.measure import measure
    from orchestrator.usecases.trials import benchmark

    words = [f"{key}={value}" for key, value in typed.items() if value is not None]
    words += ["groups=pairs"] if pairs else []
    launcher: LauncherName = "slurm" if by_slurm else "ssh"
    launch = benchmark.arguments(inventory, nodes, shape, (*words, *settings), launcher=launcher)
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
        from orchestrator.usecases.trials.benchmark_plot import plot  # matplotlib is optional

        plot(results, png)
    for finding in found:
        warn(f"{finding.text} ({finding.evidence})" if finding.evidence else finding.text)
    return code


def _rows(results: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    from orchestrator.usecases.trials.benchmark import size_text

    for result in results["results"]:
        figures: tuple[object, ...] = ("", "", "")
        if "time_s" in result:
            figures = _time(result["time_s"]), f"{result['algbw']:.3g}", f"{result['busbw']:.3g}"
        ranks, size = _ranks(result["ranks"], results["ranks"]), size_text(result["bytes"])
        yield result["op"], ranks, size, result["dtype"], *figures, result["error"] or None


def _ranks(ranks: Sequence[int], known: Sequence[Mapping[str, Any]]) -> str:
    """The nodes of two ranks, or the first and last rank of a larger group."""
    if len(ranks) == 2:  # noqa: PLR2004  a pair
        return "-".join(f"{known[rank]['node']}:{known[rank]['local_rank']}" for rank in ranks)
    return f"{ranks[0]}-{ranks[-1]}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004  a millisecond
