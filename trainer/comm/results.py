"""
From the reports of the ranks to the results of a benchmark. Pure; no torch here.

algbw is the size of the array divided by the time; busbw is algbw times a factor of operation and number of ranks, so that it can be
compared with the bandwidth of the link. Both as nccl-tests defines them: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Mapping, Sequence

from trainer.comm.config import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, SEND_RECV
from trainer.errors import TIMED_OUT
from trainer.text import by_rank, fold

FORMAT = 1
UNSUPPORTED = "not supported"  # begins the error of an operation that was not tried: its group can be used further


def bus_factor(op: str, size: int) -> float:
    """busbw divided by algbw, for a group of `size` ranks."""
    return {
        ALL_REDUCE: 2 * (size - 1) / size,
        ALL_GATHER: (size - 1) / size,
        REDUCE_SCATTER: (size - 1) / size,
        BROADCAST: 1.0,
        SEND_RECV: 1.0,
    }[op]


def results_of(
    labels: Mapping[str, str], group: Sequence[int], reports: Mapping[int, Sequence[Mapping[str, Any]]]
) -> list[Dict[str, Any]]:
    """
    The results of one group, one per size; a rank without a report is named in `error`.

    A repetition took as long as on its slowest rank. Bandwidths are in GB/s (1e9 bytes), times in seconds.

    Args:
        labels: groups, op and dtype.
        reports: by rank, what it measured.
    """
    base = {**labels, "ranks": list(group)}
    absent = [rank for rank in group if rank not in reports]
    results: List[Dict[str, Any]] = []
    for index in range(max((len(report) for report in reports.values()), default=0)):
        measured = {rank: report[index] for rank, report in reports.items() if index < len(report)}
        errors = {rank: entry["error"] for rank, entry in measured.items() if entry["error"]}
        errors.update(dict.fromkeys(absent, "no answer"))
        size_bytes = next(iter(measured.values()))["size_bytes"]
        result = {**base, "bytes": size_bytes, "error": _cause(errors)}
        times = [entry["times_s"] for entry in measured.values()]
        if len(measured) == len(group) and all(times):
            result.update(_bandwidths(labels["op"], len(group), size_bytes, [max(each) for each in zip(*times)]))
        elif not result["error"]:
            result["error"] = "not measured by every rank"
        results.append(result)
        if absent:
            break
    if not results:
        results.append({**base, "bytes": 0, "error": _cause(dict.fromkeys(absent, "no answer"))})
    return results


def _cause(errors: Mapping[int, str]) -> str:
    """The errors by rank; a timeout only if there is nothing else, since it follows from another rank's failure."""
    causes = {rank: text for rank, text in sorted(errors.items()) if not any(word in text for word in TIMED_OUT)}
    return by_rank(causes or dict(sorted(errors.items()))).replace("\n", "; ")


def _bandwidths(op: str, size: int, size_bytes: int, times_s: Sequence[float]) -> Dict[str, Any]:
    median_s = statistics.median(times_s)
    algbw = size_bytes / median_s / 1e9
    return {
        "time_s": median_s,
        "fastest_s": min(times_s),
        "slowest_s": max(times_s),
        "repetitions": len(times_s),
        "algbw": algbw,
        "busbw": algbw * bus_factor(op, size),
    }


def line_of(result: Mapping[str, Any]) -> str:
    """The log line of one result, key=value."""
    line = f"op={result['op']} groups={result['groups']} ranks={fold(result['ranks'])} bytes={result['bytes']} dtype={result['dtype']}"
    if "time_s" in result:
        line += f" time_us={result['time_s'] * 1e6:.1f} algbw={result['algbw']:.4g} busbw={result['busbw']:.4g}"
    return line + (f" error={result['error']!r}" if result["error"] else "")
