"""The time for which the ranks of a node, or the agent itself, could not run because other processes had the CPUs: no hang shows in it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Mapping, Optional

NS = 1e-9
LATE_S = 2.0  # the agent samples once a second


class CpuWaits:
    """The waits since the last reset, from samples of the ranks' main threads."""

    def __init__(self, now_s: float, proc: str = "/proc") -> None:
        self._proc = proc
        self._sampled_s = now_s
        self._delays_s: Dict[int, float] = {}  # of each rank, since its start
        self._waited_s: Dict[int, float] = {}  # of each rank, since the reset
        self.total_s = 0.0
        """The time in which no hang shows: in each interval, the longest wait of a rank, or the time for which the agent did not run."""

    def sample(self, pids: Mapping[int, int], now_s: float) -> None:
        """Add the waits of the ranks since the last sample; `pids` by rank."""
        interval_s = now_s - self._sampled_s
        self._sampled_s = now_s
        longest_s = 0.0
        for rank, pid in pids.items():
            delay_s = run_delay_s(pid, self._proc)
            if delay_s is None:
                continue
            waited_s = min(max(delay_s - self._delays_s.get(rank, delay_s), 0.0), interval_s)
            self._delays_s[rank] = delay_s
            self._waited_s[rank] = self._waited_s.get(rank, 0.0) + waited_s
            longest_s = max(longest_s, waited_s)
        self.total_s += max(longest_s, interval_s - LATE_S)

    def reset(self) -> None:
        """Begin again: the ranks have made progress."""
        self._waited_s.clear()
        self.total_s = 0.0

    def of_rank(self, rank: int) -> float:
        """The seconds for which this rank has waited since the reset."""
        return self._waited_s.get(rank, 0.0)


def run_delay_s(pid: int, proc: str = "/proc") -> Optional[float]:
    """The time for which the main thread was runnable without a CPU; None if it has ended, or the kernel does not count it."""
    try:
        with open(os.path.join(proc, str(pid), "schedstat"), encoding="ascii") as file:
            return int(file.read().split()[1]) * NS
    except (OSError, ValueError, IndexError):
        return None
