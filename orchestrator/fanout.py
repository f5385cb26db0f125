"""
Many threads: the same work on many nodes at once, and values that all of them need but one makes.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from orchestrator.errors import NodeError, NodesError, OrchError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
MOST_KEPT = 16


def each(items: Sequence[T], work: Callable[[T], R], *, limit: int) -> list[R | OrchError]:
    """
    Do the work on every item, at most `limit` at a time; a slow item delays no other one.

    Returns:
        Result or failure of each item, in their order.

    Raises:
        Exception: anything but an OrchError, once the running items have ended; no further item is started.
        KeyboardInterrupt: at once. Work that waits for a node ends with its connection, or with the process.
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

    # daemons: the threads of a pool would keep an interrupted orch from exiting
    threads = [threading.Thread(target=run, name="node", daemon=True) for _ in range(min(limit, len(items)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


def successes(results: Sequence[R | OrchError]) -> list[R]:
    """
    Return the results if there is no failure among them.

    Raises:
        NodesError: nodes failed; it holds all their failures.
        OrchError: a failure that is not a node's, before those of nodes.
    """
    failures = [result for result in results if isinstance(result, OrchError)]
    of_nodes = [failure for failure in failures if isinstance(failure, NodeError)]
    if len(of_nodes) < len(failures):
        raise next(failure for failure in failures if not isinstance(failure, NodeError))
    if of_nodes:
        raise NodesError(of_nodes, len(results))
    return [result for result in results if not isinstance(result, OrchError)]


def once(function: Callable[P, R]) -> Callable[P, R]:
    """
    Cache the results of a function by its arguments, and let one thread make them while the others wait.

    functools.lru_cache and cached_property have no lock: 64 threads that need a value together would make it 64 times.
    """
    lock, cached = threading.Lock(), functools.lru_cache(maxsize=MOST_KEPT)(function)

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # typeshed knows hashable arguments alone

    return locked
