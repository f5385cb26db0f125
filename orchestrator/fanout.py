"""
The same work on many nodes at once: bounded, failures kept as values, results in the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    """
    if not items:
        return []

    def attempt(item: T) -> R | OrchError:
        try:
            return work(item)
        except OrchError as failure:
            return failure

    with ThreadPoolExecutor(max_workers=min(limit, len(items)), thread_name_prefix="node") as pool:
        futures: list[Future[R | OrchError]] = [pool.submit(attempt, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
