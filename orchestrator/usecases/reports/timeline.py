"""How the time of a run was spent: in steps that count, and lost to failures, starts and saves. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

LOST = ("check", "init", "restore", "first step", "between steps", "repeated steps", "detect", "stop")
"""The parts of the lost time, in the order in which an attempt loses it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of metrics.jsonl."""

    step: int
    time: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt as its nodes have recorded it; times in seconds since 1970 by this machine's clock, None if unknown."""

    agent_started: float | None = None
    """The start of the first agent."""
    ranks_started: float | None = None
    """The start of the last rank."""
    failed: float | None = None
    """The exit of the first rank that failed, or the last sign of life if the attempt was lost; None if it did not fail."""
    is_hang: bool = False
    """The failure is a hang: it began when the last progress was reported."""
    stopping: float | None = None
    """When the last node began to end its ranks."""
    ended: float | None = None
    """When nothing was left running on any node."""
    progress: float | None = None
    milestones: Mapping[str, float] = field(default_factory=dict)
    """When rank 0 reached `restore`, `restored`, `first_step` and `first_step_end`."""
    resumed: int = 0
    """The step at which it began."""
    step: int = 0
    saved: int | None = None
    saves: int = 0
    save_s: float = 0.0
    """The time for which saves stopped the training."""
    utilization_percent: float | None = None
    """The mean utilization of the cards since the first step; None without cards."""
    utilization_samples: int = 0

    @property
    def work_end(self) -> float | None:
        """When the ranks made their last useful move: the failure, the beginning of a hang, or the last progress."""
        if self.failed is None:
            return self.progress or self.ended
        return self.progress if self.is_hang and self.progress is not None else self.failed

    @property
    def phases(self) -> Sequence[tuple[str, float | None]]:
        """The phases between the start of the ranks and the second step, each with its end; None if it was not reached."""
        if "restore" in self.milestones or not self.milestones:
            names = (("init", "restore"), ("restore", "restored"), ("first step", "first_step_end"))
            return [(name, self.milestones.get(milestone)) for name, milestone in names] if self.milestones else []
        return [("init", self.milestones.get("first_step"))]  # a script, whose first step is reported when it is done


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time of a run from its launch (under Slurm from its first agent) to its end; `productive_s` and `lost` add up to it."""

    wall_s: float
    productive_s: float
    queue_s: float
    lost: Mapping[str, float]
    repeated_steps: int
    failures: int
    saves: int
    save_s: float
    training_s: float
    """From the first to the last step of each attempt."""
    utilization_percent: float | None = None
    """The mean utilization of the cards that the ranks should use, since the first step of each attempt; None without cards."""
    utilization_samples: int = 0

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: the share of the time spent in steps that count."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else None


class _Account:
    """The lost time so far; `until` assigns the time since the previous event to a part."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.lost = dict.fromkeys(LOST, 0.0)

    def until(self, time: float | None, part: str) -> float:
        """Assign the time up to `time`, if that is later, to the part; returns the seconds."""
        seconds = max(0.0, (time or self.now) - self.now)
        self.now += seconds
        self.lost[part] += seconds
        return seconds


def timeline(
    created: float, attempts: Sequence[Attempt], steps: Sequence[Step], *, is_queued: bool, has_failed: bool
) -> Timeline:
    """
    Split the time of a run.

    Args:
        created: the time of the launch.
        attempts: all attempts, in order.
        steps: metrics.jsonl, which has each step once: the last time it was made. Empty for a program that writes none.
        is_queued: the time before the first agent is the scheduler's, and not part of the run.
        has_failed: the run has failed, so steps after its last save are lost.
    """
    begin = (attempts[0].agent_started if attempts else None) if is_queued else None
    account = _Account(begin or created)
    start, productive_s, training_s, repeated = account.now, 0.0, 0.0, 0
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        account.until(attempt.ranks_started or attempt.ended, "check")
        for part, end in attempt.phases:  # before the second step
            account.until(end if end is not None else attempt.work_end, part)
            if end is None:  # the attempt failed in this phase, which lasted until then
                break
        training_begin = account.now
        kept = _kept_step(attempt, following, has_failed=has_failed)
        work_end = max(account.now, attempt.work_end or account.now)
        kept_end = _time_of(kept, attempt, steps, (training_begin, work_end))
        productive_s += _productive(account, attempt, (kept, kept_end), steps)
        repeated += max(0, attempt.step - kept)
        account.until(work_end, "repeated steps")
        training_s += work_end - training_begin
        if attempt.failed is not None:
            account.until(max(attempt.stopping or 0.0, attempt.failed), "detect")
        account.until(attempt.ended, "stop")
    saves, save_s = sum(attempt.saves for attempt in attempts), sum(attempt.save_s for attempt in attempts)
    failures = sum(attempt.failed is not None for attempt in attempts)
    wall_s, queue_s = account.now - start, max(0.0, start - created)
    use = mean_utilization([(attempt.utilization_percent, attempt.utilization_samples) for attempt in attempts])
    spent = (wall_s, productive_s, queue_s, account.lost, repeated, failures, saves, save_s, training_s)
    return Timeline(*spent, *use)


def mean_utilization(means: Sequence[tuple[float | None, int]]) -> tuple[float | None, int]:
    """The mean of several means, weighted by their numbers of samples, and the number of all samples; None without any."""
    samples = sum(count for _, count in means)
    weighted = sum((mean or 0.0) * count for mean, count in means)
    return (weighted / samples if samples else None), samples


def _kept_step(attempt: Attempt, following: Attempt | None, *, has_failed: bool) -> int:
    """The newest step of the attempt that counts: where the next attempt began, or what was saved if the run failed."""
    if following is not None:
        return max(attempt.resumed, min(attempt.step, following.resumed))
    if has_failed and attempt.failed is not None:
        return max(attempt.resumed, attempt.saved or 0)
    return attempt.step


def _time_of(step: int, attempt: Attempt, steps: Sequence[Step], training: tuple[float, float]) -> float:
    """When a step of the attempt was done: by its metrics, else as if all steps took equally long."""
    begin, end = training
    if step >= attempt.step:
        return end
    position = bisect_right(steps, step, key=lambda line: line.step) - 1
    if position >= 0 and steps[position].step == step and begin <= steps[position].time <= end:
        return steps[position].time
    made = attempt.step - attempt.resumed
    return begin + (end - begin) * (step - attempt.resumed) / made if made > 0 else begin


def _productive(account: _Account, attempt: Attempt, kept: tuple[int, float], steps: Sequence[Step]) -> float:
    """
    The seconds in steps that count; the rest up to `kept_end` is assigned to `between steps`: saves and evaluations.

    The first step is a start, of which as much is productive as a step takes in the middle.
    """
    step, kept_end = kept
    span = max(0.0, kept_end - account.now)
    seconds = [line.seconds for line in steps if attempt.resumed + 1 < line.step <= step]
    if not seconds or len(seconds) < step - attempt.resumed - 1:  # the metrics do not have all steps
        account.now += span
        return span
    in_steps = min(span, sum(seconds))
    account.now += in_steps
    account.until(kept_end, "between steps")
    first = min(median(seconds), account.lost["first step"])
    account.lost["first step"] -= first
    return in_steps + first
