"""
When this rank arrives at the collectives of a step, for the progress file: orch compares the ranks, and names one that is slow.

The ranks leave the synchronisation of the gradients at the same moment. A time since then needs no common clock of the nodes.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from bisect import bisect_right
from collections import Counter, deque
from typing import Any, Callable, Deque, Dict, Optional, Sequence, Tuple

from .channel import flight_entries
from .cpu_limits import Counts, limit_periods, limited_share

STEPS = 20  # that are measured; the median of each value leaves out steps with a save or an evaluation
LEAST_STEPS = 10  # of them with equally many collectives
KEPT = 6  # measurements, of which orch compares those after equal steps
POINTS = 4  # collectives of a step whose arrival is reported
LARGEST_SHARE = 0.005  # of the duration of the steps that a measurement may take
NS = 1e-9

Json = Dict[str, Any]


class Arrivals:
    """
    The arrivals of this rank in the last STEPS steps, measured after every STEPS steps, or seldom enough to cost LARGEST_SHARE.

    One measurement reads the whole flight record: up to 0.1 s with 2,000 entries. All ranks read it after the same steps.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns  # the clock of the flight record
        self._syncs_ns: Deque[int] = deque(maxlen=STEPS + 1)
        self._every = STEPS
        self._newest: Dict[str, Json] = {}
        self._cpu_ns: Optional[Tuple[int, int]] = None
        self._limits: Counts = {}
        self._is_off = False  # the flight record could not be read

    def after_sync(self, step: int, world_size: int) -> Json:
        """
        Note that the gradients of a step are the same on all ranks; return the values for the progress file if some are due.
        `step`: counted from 1 on, equal on all ranks.
        """
        self._syncs_ns.append(self._clock_ns())
        if self._is_off or world_size == 1 or step % self._every or len(self._syncs_ns) <= STEPS:
            return {}
        began_s = time.thread_time()
        measured = self._measured()
        step_s = (self._syncs_ns[-1] - self._syncs_ns[0]) * NS / STEPS
        while time.thread_time() - began_s > LARGEST_SHARE * self._every * step_s > 0:
            self._every *= 2
        if not measured:
            return {}
        self._newest[str(step)] = {**measured, **self._cpu_shares()}
        while len(self._newest) > KEPT:
            del self._newest[next(iter(self._newest))]
        return {"arrivals": {"count": world_size, "steps": dict(self._newest)}}

    def slowest(self, gather_bytes: Callable[[bytes], Sequence[bytes]]) -> str:
        """A collective: one line about the rank that most others waited for in the newest measurement of all ranks, or ""."""
        everyone = [json.loads(newest) for newest in gather_bytes(json.dumps(self._newest).encode())]
        common = sorted(set.intersection(*map(set, everyone)), key=int)
        return describe_slowest([rank[common[-1]] for rank in everyone], int(common[-1])) if common else ""

    def _measured(self) -> Json:
        """The measurement of the last steps; after an error a warning, and no further measurement."""
        try:
            return measure(flight_entries(), list(self._syncs_ns))
        except Exception as exc:  # noqa: BLE001 -- the flight record of another version of torch must not end the training
            self._is_off = True
            text = f"WARNING: slow ranks are not found, as the flight record of torch cannot be read: {exc!r}"
            print(text, file=sys.stderr)
            return {}

    def _cpu_shares(self) -> Json:
        """Since the last measurement: the share of the time in which the main thread waited for a CPU, and that of a limit; Linux may not know."""
        try:
            with open("/proc/self/schedstat", encoding="ascii") as file:
                queued = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return {}
        now, before, limits_before = time.monotonic_ns(), self._cpu_ns, self._limits
        self._cpu_ns, self._limits = (now, queued), limit_periods()
        if before is None:
            return {}
        limited = limited_share(limits_before, self._limits)
        shares = {"cpu_wait": round((queued - before[1]) / (now - before[0]), 3)}
        return shares if limited is None else {**shares, "cpu_limited": limited}


def measure(entries: Sequence[Json], syncs_ns: Sequence[int]) -> Json:
    """
    The median duration of a step, and of each of some collectives the median time from the sync before it to its enqueueing.

    `error_s` is the standard error of these medians: the steps of a rank differ, too.

    A program enqueues work for a card long before the card begins it. There, `in_collectives_s` is the time that the card spends in
    the collectives of a step, if torch measures it.

    Args:
        entries: collectives of a flight record.
        syncs_ns: the times of STEPS + 1 successive syncs.
    """
    entries = sorted(entries, key=lambda entry: int(entry["time_created_ns"]))
    created_ns = [int(entry["time_created_ns"]) for entry in entries]
    bounds = [bisect_right(created_ns, sync_ns) for sync_ns in syncs_ns]
    steps = [entries[begin:end] for begin, end in zip(bounds, bounds[1:])]
    calls, count = Counter(map(len, steps)).most_common(1)[0] if steps else (0, 0)
    if not calls or count < LEAST_STEPS:
        return {}
    usual = [(begin_ns, step) for begin_ns, step in zip(syncs_ns, steps) if len(step) == calls]
    step_s = statistics.median(end - begin for begin, end in zip(syncs_ns, syncs_ns[1:])) * NS
    found: Json = {"step_s": round(step_s, 6), "calls": calls}
    if all(entry["profiling_name"].startswith("gloo:") for _, step in usual for entry in step):
        # the first and the last collective of a step, and some between them
        points = sorted({round(point * (calls - 1) / (POINTS - 1)) for point in range(POINTS)})
        samples = [
            [(int(step[index]["time_created_ns"]) - begin_ns) * NS for begin_ns, step in usual] for index in points
        ]
        found["at_s"] = [round(statistics.median(times_s), 6) for times_s in samples]
    else:  # torch's watchdog thread writes the durations later, so the newest steps may have none
        timed = [step for _, step in usual if all(entry.get("duration_ms") is not None for entry in step)]
        if len(timed) < LEAST_STEPS:
            return {}
        samples = [[sum(float(entry["duration_ms"]) for entry in step) / 1000 for step in timed]]
        found["in_collectives_s"] = round(statistics.median(samples[0]), 6)
    return {**found, "error_s": round(max(map(_error, samples)), 6)}


def describe_slowest(measured: Sequence[Json], step: int) -> str:
    """The rank that arrives last at the last collective, or spends the least time in collectives; "" if it is not known of all ranks."""
    if all("at_s" in rank for rank in measured):
        arrivals_s = [float(rank["at_s"][-1]) for rank in measured]
    elif all("in_collectives_s" in rank for rank in measured):
        arrivals_s = [-float(rank["in_collectives_s"]) for rank in measured]
    else:
        return ""
    last_s, step_s = max(arrivals_s), statistics.median(rank["step_s"] for rank in measured)
    waited_s = last_s - statistics.median(arrivals_s)
    return (
        f"slowest rank {arrivals_s.index(last_s)}: it came {waited_s * 1000:.1f} ms of a step of {step_s * 1000:.1f} ms after the median rank, "
        f"by steps {step - STEPS + 1} to {step}"
    )


def _error(samples: Sequence[float]) -> float:
    """The standard error of the median, from the quartiles; that of normally distributed samples."""
    lower, _, upper = statistics.quantiles(samples, n=4)
    return 1.25 * (upper - lower) / 1.35 / math.sqrt(len(samples))
