"""
The rule that names idle cards. Pure.

A card is idle if it is at 0 % in several samples in a row. A sample counts only if a rank has reported a step since the previous one,
so not while the program starts, loads, compiles, hangs, evaluates or saves. A program that reports no steps, and a node without a
busy card, need more samples.
"""

from __future__ import annotations

from orchestrator.node.run.run_folder import progress_file
from orchestrator.node.system.files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence

SAMPLES = 3
SAMPLES_IN_DOUBT = 5
BETWEEN_STEPS = frozenset(("init", "eval", "save"))


class Steps:
    """The reports of the ranks: their newest step, None if none has reported one; and whether a rank is between two steps."""

    def __init__(self, newest: Optional[int], *, is_between: bool) -> None:
        self.newest = newest
        self.is_between = is_between


def reported_steps(folder: str, ranks: Sequence[int]) -> Steps:
    files = (read_json(progress_file(folder, rank)) for rank in ranks)
    reports = [report for report in files if report is not None]
    steps = [report["step"] for report in reports if isinstance(report.get("step"), int)]
    return Steps(max(steps, default=None), is_between=any(report.get("phase") in BETWEEN_STEPS for report in reports))


class IdleCards:
    """
    Counts the samples in which each card was at 0 %.

    Args:
        ranks: the number of ranks on the node; each should use another card.
        may_all_idle: False if ranks without any card may be what the user wants: the accelerator is not in the inventory.
    """

    def __init__(self, ranks: int, *, may_all_idle: bool) -> None:
        self._ranks = ranks
        self._may_all_idle = may_all_idle
        self._zeros: Dict[int, int] = {}
        self._idle: List[int] = []
        self._step = 0

    def expected(self, loads: Mapping[int, Optional[float]]) -> int:
        """The number of cards that the ranks should use."""
        return min(self._ranks, len(loads))

    def add(self, loads: Mapping[int, Optional[float]], steps: Steps) -> List[int]:
        """Add a sample, per cent by card; return the idle cards if fewer than the expected number are in use."""
        has_steps = steps.newest is not None
        if steps.newest is not None:
            if steps.is_between or steps.newest <= self._step:
                return self._idle
            self._step = steps.newest
        is_busy = any(loads.values())
        if None in loads.values() or not (is_busy or (has_steps and self._may_all_idle)):
            self._zeros, self._idle = {}, []  # a value is unknown; or the program does not compute at all
            return self._idle
        self._zeros = {card: self._zeros.get(card, 0) + 1 for card, load in loads.items() if load == 0}
        needed = SAMPLES if is_busy and has_steps else SAMPLES_IN_DOUBT
        idle = sorted(card for card, count in self._zeros.items() if count >= needed)
        self._idle = idle if len(loads) - len(idle) < self.expected(loads) else []
        return self._idle
