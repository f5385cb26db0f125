"""
The same work on many nodes at once: bounded, failures kept as values, results in the order of the nodes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.errors import NodeError, NodesError, OrchError

T = TypeVar("T")
R = TypeVar("R")


def each(items: Sequence[T], work: Callable[[T], R], *, limit: int) -> list[R | OrchError]:
    """
    Do the work on every item, at most `limit` at a time; one that takes long delays nobody else.

    Returns:
        Result or failure of each item, in their order.

    Raises:
        Exception: whatever is no OrchError, after the others have ended; what had not begun then never does.
        KeyboardInterrupt: at once. Work that waits for a node then ends with its connection, or with the process.
    """
    results: dict[int, R | OrchError] = {}
    errors: list[Exception] = []
    waiting = deque(enumerate(items))

    def work_off() -> None:
        while waiting and not errors:
            try:
                index, item = waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                results[index] = work(item)
            except OrchError as failure:
                results[index] = failure
            except Exception as error:  # noqa: BLE001  raised again below
                errors.append(error)

    # daemons: a pool's threads would keep an interrupted orch from ending
    threads = [threading.Thread(target=work_off, name="node", daemon=True) for _ in range(min(limit, len(items)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


def successes(results: Sequence[R | OrchError]) -> list[R]:
    """
    Give the results, if all of them are.

    Raises:
        NodesError: nodes failed; all their failures are in it.
        OrchError: a failure that is not about a node.
    """
    failures = [result for result in results if isinstance(result, OrchError)]
    of_nodes = [failure for failure in failures if isinstance(failure, NodeError)]
    if len(of_nodes) < len(failures):
        raise next(failure for failure in failures if not isinstance(failure, NodeError))
    if of_nodes:
        raise NodesError(of_nodes, len(results))
    return [result for result in results if not isinstance(result, OrchError)]
