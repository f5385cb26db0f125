"""
The rules of further attempts, for the batch script of a Slurm job and for the process that owns a run over SSH.

Decides whether another attempt may help, whether it is allowed, and which nodes it runs on. Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Protocol

    class EndedAttempt(Protocol):
        """An attempt that has ended; its node names are those of the inventory."""

        @property
        def requeues(self) -> int:
            """The allocation it ran in; always 0 over SSH."""

        @property
        def saved(self) -> int | None:
            """The newest step that can be resumed; None if no rank has reported a step."""

        @property
        def step(self) -> int | None:
            """The newest step that a rank has reported; None if no rank has."""

        @property
        def was_warned(self) -> bool:
            """True if Slurm announced the end of the job."""

        @property
        def started(self) -> AbstractSet[str]:
            """The nodes whose agents have started."""

        @property
        def lost(self) -> AbstractSet[str]:
            """The nodes that were cut off or have died."""

        @property
        def broken(self) -> AbstractSet[str]:
            """The nodes that failed while their ranks ran: lost ones, and those whose agent was killed."""

        @property
        def first_failed_node(self) -> str | None:
            """The node whose rank failed first; None if a node was lost, or no rank failed."""

        @property
        def no_retry(self) -> bool:
            """True if the cause of the failure is one that another attempt meets as well."""


OUT_OF_MEMORY = ("out of memory", "memoryerror", "std::bad_alloc")  # in lower case, in errors of torch, Python and C++
MOST_WITHOUT_PROGRESS = 3  # attempts in a row


def saved_step(progress: Mapping[str, object]) -> int | None:
    """The newest step that a rank has saved, by its progress file; for a program that does not report saving, its newest step."""
    step = progress.get("saved", progress.get("step"))
    return step if isinstance(step, int) else None


def has_saved(progress: Mapping[str, object]) -> bool:
    """True if a rank has reported a step that it has saved itself."""
    return bool(progress.get("saved"))


def newest_step(reports: Iterable[Mapping[str, object]]) -> int | None:
    steps = (report.get("step") for report in reports)
    return max((step for step in steps if isinstance(step, int)), default=None)


def reports_exhausted_memory(text: str) -> bool:
    """True if an error or the last lines of a rank report that memory was exhausted: it would be again."""
    return any(words in text.lower() for words in OUT_OF_MEMORY)


def attempts_without_progress(attempts: Sequence[EndedAttempt], *, at_any_step: bool = False) -> int:
    """
    Count the last attempts in a row without progress.

    An attempt makes progress if it saves a new step; if it reports no saves, if it runs until Slurm's warning.

    Args:
        at_any_step: as for `retry_may_help`; until a step is saved, progress is a step that no attempt has made before.
    """
    best, best_step, count = 0, 0, 0
    for attempt in attempts:
        is_further = at_any_step and not best and (attempt.step or 0) > best_step
        has_progress = attempt.was_warned if attempt.saved is None else attempt.saved > best
        count = 0 if has_progress or is_further else count + 1
        best, best_step = max(best, attempt.saved or 0), max(best_step, attempt.step or 0)
    return count


def retry_may_help(attempts: Sequence[EndedAttempt], *, at_any_step: bool = False) -> bool:
    """
    True if another attempt may succeed: a step was saved, or the cause of the failure was a node or Slurm.
    `at_any_step`: the user has requested restarts of this run, so a program that has made a step is taken to be able to.
    """
    last = attempts[-1]
    start_failed = len(attempts) > 1 and not last.started  # the program can start: it did so before
    has_advanced = any(attempt.saved or (at_any_step and attempt.step) for attempt in attempts)
    return not last.no_retry and bool(last.broken or start_failed or has_advanced)


def reason_against_restart(attempts: Sequence[EndedAttempt], max_retries: int, *, at_any_step: bool = False) -> str:
    """The reason against any further attempt; empty if there is none."""
    newest = newest_saved(attempts)
    if attempts_without_progress(attempts, at_any_step=at_any_step) >= MOST_WITHOUT_PROGRESS:
        return f"{MOST_WITHOUT_PROGRESS} attempts in a row made no progress, so the run is not restarted: {newest}"
    if len(attempts) > max_retries:
        return f"attempt {len(attempts)} was the last: max_retries is {max_retries}; {newest}"
    return ""


def reason_without_progress(attempts: Sequence[EndedAttempt], *, at_any_step: bool) -> str:
    """Why no other attempt may help, if that is so because of what the attempts have reported."""
    if at_any_step:
        return "no rank has reported a step, and no node was lost"
    reason = "nothing was saved, and no node was lost"
    return f"{reason}; --max-retries N restarts it after any step" if any(each.step for each in attempts) else reason


def newest_saved(attempts: Sequence[EndedAttempt]) -> str:
    """The newest saved step of all attempts as part of a sentence."""
    step = max((attempt.saved or 0 for attempt in attempts), default=0)
    return f"the newest saved step is {step}" if step else "nothing was saved"


def choose_nodes(
    names: Sequence[str], count: int, attempts: Sequence[EndedAttempt], spares: Container[str]
) -> list[str]:
    """
    The nodes of the next attempt, in the order of `names`; fewer than count if too few are left.

    Args:
        names: all nodes that may be used.
        attempts: all so far. A node that was lost in this allocation is excluded; one that failed is used if there is no other.
        spares: the nodes that are unused until another one fails.
    """
    in_allocation = [attempt for attempt in attempts if attempt.requeues == attempts[-1].requeues]
    lost = {name for attempt in in_allocation for name in attempt.lost}
    failed_nodes = [attempt.first_failed_node for attempt in attempts]
    usable = [name for name in names if name not in lost]
    best = sorted(usable, key=lambda name: (failed_nodes.count(name), name in spares))[:count]
    return [name for name in names if name in best]
