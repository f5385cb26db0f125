"""Find the ranks that the others wait for in each step, by the arrivals in their progress (trainer/runtime/arrivals.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, TypeAlias

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.number_text import format_numbers
from orchestrator.portable.findings import Finding, Severity

KEY, CHECK = "arrivals", "slow-rank"
LATE_SHARE = 0.1  # of a step; the others wait at least so long
LEAST_S = 0.002
ERRORS = 4  # times the standard error of a median; at 3, chance names a rank of 8 once in 1,000 measurements
CONFIRMATIONS = 2  # successive measurements, of 20 steps each, in which a rank is late
NONE_SLOW = "no rank is slow any more"
SECOND_MS = 1000
BUSY_CPUS = 0.1  # a rank that waits longer for a CPU has too few

Measurement: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than most ranks one arrives, and its time beside theirs."""

    late_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """The ranks that are slow, and the finding about them; no ranks and None if none is."""

    ranks: tuple[int, ...] = ()
    finding: Finding | None = None

    @property
    def text(self) -> str | None:
        return None if self.finding is None else str(self.finding)


class SlowRankWatch:
    """Reports only changes of the slow ranks."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] | None = None

    def change(self, nodes: Sequence[NodeObservation]) -> SlowRanks | None:
        """The slow ranks at first and if they are not those of the last change, else None."""
        slow = slow_ranks(nodes)
        if slow is None or slow.ranks == self._ranks:
            return None
        self._ranks = slow.ranks
        return slow


def slow_ranks(nodes: Sequence[NodeObservation]) -> SlowRanks | None:
    """
    The ranks that were late in the last two measurements; None if that is open: a rank has not reported, or was late in one only.

    At most half of the ranks are late: the time of the others is the reference, the low median.
    """
    measured = _measurements(nodes)[-CONFIRMATIONS:]
    if len(measured) < CONFIRMATIONS:
        return None
    late = [_late(at_step) for at_step in measured]
    always = set.intersection(*map(set, late))
    if always:
        last = {rank: late[-1][rank] for rank in always}
        return SlowRanks(tuple(sorted(always)), _finding(last, measured[-1], nodes))
    return None if any(late) else SlowRanks()


def newest_lateness(nodes: Sequence[NodeObservation]) -> dict[int, float]:
    """The seconds by which each rank arrived later than most in the newest measurement of all ranks; empty without one."""
    measured = next(iter(_measurements(nodes)[-1:]), {})
    try:
        step_s = median_low(float(each["step_s"]) for each in measured.values())
        found = _lateness(measured, step_s)
    except (KeyError, TypeError, ValueError):  # no measurement, or values that are no numbers
        return {}
    return {rank: max(pair.late_s for pair in pairs) for rank, pairs in found.items() if pairs}


def newest_cpu_wait(progress: Mapping[str, Any]) -> float | None:
    """The share of the time for which a rank waited for a CPU, by its newest measurement; None if that is unknown."""
    report = _report(progress) or {"steps": {}}
    newest = max(filter(str.isdecimal, report["steps"]), key=int, default=None)
    return None if newest is None else next(iter(_numbers([report["steps"][newest]], "cpu_wait")), None)


def _measurements(nodes: Sequence[NodeObservation]) -> list[dict[int, Measurement]]:
    """The measurements that all ranks have reported, by rank, the newest last; empty until every rank has reported one."""
    reports = {
        rank: report for node in nodes for rank, progress in node.progress.items() if (report := _report(progress))
    }
    if len(reports) != next((report["count"] for report in reports.values()), -1):
        return []
    common = set.intersection(*(set(report["steps"]) for report in reports.values()))
    steps = sorted(filter(str.isdecimal, common), key=int)
    return [{rank: report["steps"][step] for rank, report in reports.items()} for step in steps]


def _report(progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The measurements in a progress file, which any program may have written."""
    report = progress.get(KEY)
    is_valid = (
        isinstance(report, dict)
        and isinstance(report.get("count"), int)
        and isinstance(report.get("steps"), dict)
        and all(isinstance(step, dict) for step in report["steps"].values())
    )
    return report if is_valid else None


def _late(measured: Mapping[int, Measurement]) -> dict[int, Lateness]:
    """The late ranks after one step; none if the ranks have different numbers of collectives, or the values are not numbers."""
    try:
        if len({(each["calls"], len(each.get("at_s", ()))) for each in measured.values()}) != 1:
            return {}
        errors_s = {rank: float(each["error_s"]) for rank, each in measured.items()}
        step_s = median_low(float(each["step_s"]) for each in measured.values())
        found = {rank: max(pairs, key=lambda pair: pair.late_s) for rank, pairs in _lateness(measured, step_s).items()}
    except (KeyError, TypeError, ValueError):
        return {}
    least_s = max(LEAST_S, LATE_SHARE * step_s)
    return {rank: pair for rank, pair in found.items() if pair.late_s >= max(least_s, ERRORS * errors_s[rank])}


def _lateness(measured: Mapping[int, Measurement], step_s: float) -> dict[int, list[Lateness]]:
    """The lateness of each rank at each reported collective; by the time outside of collectives if a card measures only that."""
    times = {
        rank: list(map(float, each["at_s"] if "at_s" in each else [step_s - float(each["in_collectives_s"])]))
        for rank, each in measured.items()
    }
    usual = [median_low(at) for at in zip(*times.values(), strict=True)]
    return {
        rank: [
            Lateness(at - typical, at / typical if typical > 0 else 1.0) for at, typical in zip(row, usual, strict=True)
        ]
        for rank, row in times.items()
    }


def _finding(
    late: Mapping[int, Lateness], measured: Mapping[int, Measurement], nodes: Sequence[NodeObservation]
) -> Finding:
    slowest = max(late, key=lambda rank: late[rank].late_s)
    ranks, lateness = sorted(late), late[slowest]
    names = [node.node for node in nodes if any(rank in late for rank in node.progress)]
    step_s = float(measured[slowest]["step_s"])
    subject = f"rank {ranks[0]} is slow" if len(ranks) == 1 else f"ranks {format_numbers(ranks)} are slow"
    pronoun = "it" if len(ranks) == 1 else f"rank {slowest}"
    text = (
        f"{subject}: {pronoun} arrives {_duration(lateness.late_s)} later than most at the collectives of a step of {_duration(step_s)}, "
        f"after {lateness.factor:.1f} times their time, and the others wait for it"
    )
    by_name = {node.node: node for node in nodes}
    evidence = "; ".join(_shown(by_name[name], late, measured) for name in names)
    remedy = f"the run continues; `orch check --level full --nodes {','.join(names)}` tests the node{'' if len(names) == 1 else 's'}"
    return Finding(Severity.WARN, CHECK, text, tuple(names), evidence=evidence, remedy=remedy)


def _shown(node: NodeObservation, late: Mapping[int, Lateness], measured: Mapping[int, Measurement]) -> str:
    """The state of the node: how long its ranks wait for a CPU, and the last sample of the cards."""
    of_node = [measured[rank] for rank in late if rank in node.progress]
    waits, limits = _numbers(of_node, "cpu_wait"), _numbers(of_node, "cpu_limited")
    parts = []
    if max(waits, default=0.0) >= BUSY_CPUS:
        if max(limits, default=0.0) >= BUSY_CPUS:
            cause = f"its cgroup reaches its limit of CPU time in {max(limits):.0%} of the periods (nr_throttled in cpu.stat)"
        else:
            cause = "other processes use them, or too few are bound"
        parts.append(f"it waits {max(waits):.0%} of the time for a CPU: {cause}")
    elif waits:
        parts.append("it does not wait for a CPU")
    if node.cards is not None and node.cards["cards"]:
        parts.append(f"{node.cards['tool']}: {', '.join(map(_card, node.cards['cards']))}")
    elif node.cards is not None and node.cards["error"]:
        parts.append(node.cards["error"])
    return f"{node.node}: {'; '.join(parts) or 'nothing more is known'}"


def _numbers(measured: Sequence[Measurement], key: str) -> list[float]:
    """The values that are numbers: any program may have written them."""
    return [value for each in measured if isinstance(value := each.get(key), int | float)]


def _card(card: Mapping[str, Any]) -> str:
    values = (("utilization_percent", "{} %"), ("memory_used_mib", "{} MiB"), ("state", "{}"))
    shown = [text.format(card[name]) for name, text in values if card.get(name) is not None]
    return f"card {card.get('index')} {' '.join(shown)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if round(seconds * 1000) >= SECOND_MS else f"{seconds * 1000:.0f} ms"
