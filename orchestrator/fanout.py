"""Threads: the same work on many nodes at once, and values that many threads share and one computes."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec, TypeVar

from orchestrator.errors import NodeError, NodesError, OrchError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
MOST_CACHED = 16


def map_parallel(items: Sequence[T], work: Callable[[T], R], *, limit: int) -> list[R | OrchError]:
    """
    Do the work on every item, at most `limit` at the same time; a slow item does not delay the others.

    If the system refuses more threads, those that have started do all of the work, or the caller's thread if none has.

    Returns:
        The result or failure of each item, in the order of the items.

    Raises:
        Exception: an error that is not an OrchError, once the running items have ended; no further item is started.
        KeyboardInterrupt: at once. Work that waits for a node ends when its connection or the process ends.
    """
    results: dict[int, R | OrchError] = {}
    errors: list[Exception] = []
    waiting = deque(enumerate(items))

    def run() -> None:
        while waiting and not errors:
            try:
                index, item = waiting.popleft()
            except IndexError:  # another thread took the last item
                return
            try:
                results[index] = work(item)
            except OrchError as failure:
                results[index] = failure
            except Exception as error:  # noqa: BLE001  raised again below
                errors.append(error)

    # daemon threads: a pool's threads would keep an interrupted orch from exiting
    threads = [threading.Thread(target=run, name="node", daemon=True) for _ in range(min(limit, len(items)))]
    try:
        started = _start(threads)
        if not started:
            run()
        for thread in started:
            thread.join()
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


def map_but_stragglers(
    items: Sequence[T], work: Callable[[T], R], *, limit: int, wait_s: float
) -> list[R | OrchError | None]:
    """
    As `map_parallel`, but without items that take much longer than the others: their results are None, and their work continues.

    That is when nothing has ended for wait_s, or for the time in which half of the items that do not fail have succeeded, if that
    is longer. As long as items end, the others may only be waiting for their turn.
    """
    begun = time.monotonic()
    half_s: float | None = None

    def deadline(done: Collection[R | OrchError]) -> float | None:
        nonlocal half_s
        failed = sum(isinstance(result, OrchError) for result in done)
        if half_s is None and 2 * (len(done) - failed) >= len(items) - failed > 0:
            half_s = time.monotonic() - begun
        return None if half_s is None else time.monotonic() + max(wait_s, half_s)

    return _each_until(items, work, limit=limit, deadline_of=deadline)


def map_within(items: Sequence[T], work: Callable[[T], R], *, limit: int, wait_s: float) -> list[R | OrchError | None]:
    """As `map_parallel`, but without items that take longer than wait_s: their results are None, and their work continues."""
    end = time.monotonic() + wait_s
    return _each_until(items, work, limit=limit, deadline_of=lambda _done: end)


def _each_until(
    items: Sequence[T],
    work: Callable[[T], R],
    *,
    limit: int,
    deadline_of: Callable[[Collection[R | OrchError]], float | None],
) -> list[R | OrchError | None]:
    """As `map_parallel` until a deadline, which `deadline_of` computes from the results so far; None if it is not known yet."""
    changed = threading.Condition()
    done: dict[int, R | OrchError] = {}
    outcome: list[object] = []
    is_left = threading.Event()

    def work_on(index: int) -> None:
        if is_left.is_set():
            return
        try:
            result: R | OrchError = work(items[index])
        except OrchError as failure:
            result = failure
        with changed:
            done[index] = result
            changed.notify()

    def work_on_all() -> None:
        try:
            outcome.append(map_parallel(range(len(items)), work_on, limit=limit))
        except Exception as error:  # noqa: BLE001  raised again below
            outcome.append(error)
        with changed:
            changed.notify()

    if not _start([threading.Thread(target=work_on_all, name="nodes", daemon=True)]):
        work_on_all()  # its items have limits of their own
    deadline, ended = deadline_of([]), 0
    try:
        with changed:
            while not outcome and (deadline is None or time.monotonic() < deadline):
                if len(done) > ended:
                    deadline, ended = deadline_of(done.values()), len(done)
                changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    finally:
        is_left.set()
    if outcome and isinstance(outcome[0], Exception):
        raise outcome[0]
    return [done.get(index) for index in range(len(items))]


def _start(threads: Sequence[threading.Thread]) -> Sequence[threading.Thread]:
    """Start as many of the threads as the system allows, and return them."""
    for count, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            return threads[:count]
    return threads


def successes(results: Sequence[R | OrchError]) -> list[R]:
    """
    Return the results if all work succeeded.

    Raises:
        NodesError: nodes failed; it contains all their failures.
        OrchError: the first failure that is not a NodeError, even if nodes failed too.
    """
    if failed := failed_nodes(results):
        raise failed
    return [result for result in results if not isinstance(result, OrchError)]


def failed_nodes(results: Sequence[object]) -> NodesError | None:
    """
    Return all failures of nodes as one error; None if there are none.

    Raises:
        OrchError: the first failure that is not a NodeError, even if nodes failed too.
    """
    failures = [result for result in results if isinstance(result, OrchError)]
    node_failures = [failure for failure in failures if isinstance(failure, NodeError)]
    if len(node_failures) < len(failures):
        raise next(failure for failure in failures if not isinstance(failure, NodeError))
    return NodesError(node_failures, len(results)) if node_failures else None


def once(function: Callable[P, R]) -> Callable[P, R]:
    """
    Cache the results of a function by its arguments; one thread computes a result while the others wait for it.

    functools.lru_cache and cached_property have no lock: 64 threads that need a value together would compute it 64 times.
    """
    locks: dict[object, threading.Lock] = {}
    cached = functools.lru_cache(maxsize=MOST_CACHED)(function)

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(kwargs.items()))
        with locks.setdefault(key, threading.Lock()):  # one per key: different results are computed at the same time
            try:
                return cached(*args, **kwargs)  # type: ignore[arg-type]  # typeshed accepts only hashable arguments
            finally:
                locks.pop(key, None)  # threads that come now find the cached result

    return locked
