"""`orch stats`: print how the time of a run, or of all runs, was spent, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import ProgressLine, inform, print_json, print_table, warn
from orchestrator.errors import UsageError
from orchestrator.node.number_text import counted
from orchestrator.usecases.durations import clock
from orchestrator.usecases.reports.stats import (
    SCALING_TARGET,
    UTILIZATION_TARGETS,
    History,
    Interval,
    RunStats,
    history,
    run_stats,
)

SHORT_S = 60.0
MEASURED = "orch stats RUN measures a run"

Row = tuple[str, str, str]


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completion.runs)
@click.option("--against", metavar="RUN", shell_complete=completion.runs, help="Compare the throughput with this run.")
@options.as_json
def stats(run: str | None, against: str | None, *, as_json: bool) -> int:
    """Show how the time of a run was spent: ETTR, MTTF, lost time, throughput, save interval. Without RUN: of all runs."""
    if run is None and against is not None:
        raise UsageError("--against compares one run", hint=f"orch stats RUN --against {against}")
    if run is None:
        known = history()
        if as_json:
            print_json(known.to_json())
        elif known.states:
            print_table(("", "", ""), list(_of_history(known)))
        else:
            inform("no run that has started is recorded here")
        return 0
    with ProgressLine() as progress:
        measured = run_stats(run, against, progress.update)
    if measured.missing is not None:
        warn(f"{measured.missing}; the times are those of the other nodes, or kept from an earlier measurement")
    if as_json:
        print_json(measured.to_json())
    else:
        print_table((measured.id, measured.state, ""), list(_of_run(measured)))
    return 0


def _of_run(measured: RunStats) -> Iterator[Row]:
    times = measured.timeline
    ranks = f"{counted(measured.ranks, 'rank')}, {counted(measured.attempts, 'attempt')}"
    yield "size", counted(measured.nodes, "node"), ranks
    yield "ETTR", _share(times.ettr), f"{_span(times.productive_s)} of {_span(times.wall_s)} in steps that count"
    kind = f", the last one: {measured.failure_class}" if measured.failure_class else ""
    yield "MTTF", _span(measured.mttf_s), f"{counted(times.failures, 'failure')} in {_span(times.wall_s)}{kind}"
    if times.queue_s:
        yield "in the queue", _span(times.queue_s), "not part of the ETTR"
    yield from _lost(times.lost, times.wall_s, {"repeated steps": counted(times.repeated_steps, "step")})
    for name, value in measured.rates.items():
        yield name, f"{value:,.4g}", ""
    mean, samples = times.utilization_percent, counted(times.utilization_samples, "sample")
    if mean is None:
        yield "utilization", "-", "not measured: no sample of a card since the first step"
    else:
        target = UTILIZATION_TARGETS[measured.nodes > 1]
        yield "utilization", f"{mean:.0f}%", f"of the cards, {samples}; target {target}"
    if measured.scaling is not None:
        low, high = (bound * measured.scaling.nodes_factor for bound in SCALING_TARGET)
        target = f"target {low:.3g} to {high:.3g}" if measured.scaling.nodes_factor != 1 else "of equally many nodes"
        note = f"times {measured.scaling.against}; {target}, {measured.scaling.efficiency:.0%} of linear"
        yield "scaling", f"{measured.scaling.factor:.2f}", note
    if measured.interval is not None:
        yield from _intervals(measured.interval)


def _intervals(interval: Interval) -> Iterator[Row]:
    yield "save", f"{interval.save_s:.2f}s", "training stands still, mean"
    expected = f"expected ETTR {interval.ettr(interval.in_use_s):.1%}"
    yield "save interval", _span(interval.in_use_s), f"in use, {expected}"
    best = f"expected ETTR {interval.ettr(interval.best_s):.1%}; MTTF {_span(interval.mttf_s)}: {interval.source}"
    yield "", _span(interval.best_s), f"best (Young 1974, Daly 2006), {best}"


def _of_history(known: History) -> Iterator[Row]:
    yield "runs", str(sum(known.states.values())), _counted(known.states)
    yield "failures", str(known.failures), _counted(known.classes)
    left_out = f"; without {counted(known.untimed, 'Slurm run')} not measured" if known.untimed else ""
    yield "MTTF", _span(known.mttf_s), f"of a run, in {_span(known.run_s)}{left_out}"
    yield "", _span(known.mttf_node_s), f"of a node, in {_span(known.node_s)} of all nodes"
    yield "ETTR", _share(known.ettr), f"{len(known.timelines)} runs measured; {MEASURED}"
    yield from _lost(known.lost, sum(times.wall_s for times in known.timelines), {})


def _lost(lost: Mapping[str, float], wall_s: float, remarks: Mapping[str, str]) -> Iterator[Row]:
    """The parts of the lost time that are not zero."""
    for part, seconds in lost.items():
        if seconds > 0:
            remark = f", {remarks[part]}" if part in remarks else ""
            yield f"  {part}", _span(seconds), f"{seconds / wall_s:.1%}{remark}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2g}s" if seconds < SHORT_S / 6 else clock(seconds)
