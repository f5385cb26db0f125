from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from orchestrator.errors import LaunchError, NodeError, NodesError, UsageError
from orchestrator.fanout import map_but_stragglers, map_parallel, map_within, once, successes


def test_results_and_failures_are_in_the_order_of_the_items() -> None:
    failure = NodeError("b", "no route to host")

    def work(name: str) -> str:
        if name == "b":
            raise failure
        return name.upper()

    assert map_parallel(["a", "b", "c"], work, limit=2) == ["A", failure, "C"]


def test_no_items_give_no_results() -> None:
    assert map_parallel([], str, limit=3) == []


def test_hung_item_delays_no_other_item() -> None:
    others_done = threading.Barrier(3, timeout=10)

    def work(index: int) -> int:
        if index == 0:
            others_done.wait()  # hangs until all others are done
        elif index > 6:
            others_done.wait()
        return index

    assert map_parallel(range(9), work, limit=3) == list(range(9))


def test_straggler_is_left_once_half_of_the_others_have_succeeded() -> None:
    failure, gate = NodeError("b", "no route to host"), threading.Event()

    def work(name: str) -> str:
        if name == "b":
            raise failure
        if name == "stuck":
            gate.wait()
        return name.upper()

    names = ["a", "b", "stuck", "c"]
    assert map_but_stragglers(names, work, limit=4, wait_s=0.05) == ["A", failure, None, "C"]
    gate.set()
    assert map_but_stragglers(names, work, limit=2, wait_s=60) == ["A", failure, "STUCK", "C"]


def test_items_that_wait_for_their_turn_are_no_stragglers() -> None:
    """As logins: half of the nodes answer at once, and the others log in one after the other."""
    waits_s = [0.0] * 11 + [0.25] * 9
    assert (
        map_but_stragglers(waits_s, lambda wait_s: threading.Event().wait(wait_s), limit=1, wait_s=1.5) == [False] * 20
    )


def test_item_that_takes_longer_than_the_deadline_is_left() -> None:
    gate = threading.Event()
    items: list[Callable[[], object]] = [lambda: "done", gate.wait]
    assert map_within(items, lambda item: item(), limit=2, wait_s=0.1) == ["done", None]
    gate.set()
    assert map_within(items, lambda item: item(), limit=2, wait_s=60) == ["done", True]


def test_only_item_is_no_straggler() -> None:
    assert map_but_stragglers([0.1], lambda wait_s: threading.Event().wait(wait_s), limit=1, wait_s=0.0) == [False]


def test_programming_error_of_an_item_among_stragglers_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        map_but_stragglers([1, 0], lambda index: 1 // index, limit=2, wait_s=60)


def test_at_most_limit_items_run_at_once() -> None:
    one_too_many = threading.Barrier(5)

    def work(_: int) -> bool:
        try:
            one_too_many.wait(timeout=0.3)
        except threading.BrokenBarrierError:
            return False
        return True

    assert map_parallel(range(5), work, limit=4) == [False] * 5


def test_programming_error_is_raised() -> None:
    def work(index: int) -> int:
        return 1 // index

    with pytest.raises(ZeroDivisionError):
        map_parallel([1, 0, 1], work, limit=2)


def _refuse_threads(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let threading.Thread.start fail after some calls, as it does at the user's limit of processes."""
    start, calls = threading.Thread.start, iter(range(after))

    def limited(thread: threading.Thread) -> None:
        if next(calls, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_threads_that_could_start_do_all_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_threads(monkeypatch, after=2)
    assert map_parallel(range(9), lambda index: index, limit=8) == list(range(9))


def test_callers_thread_does_the_work_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_threads(monkeypatch, after=0)
    failure = NodeError("b", "no route to host")

    def work(index: int) -> int:
        if index == 1:
            raise failure
        return index

    assert map_parallel(range(3), work, limit=8) == [0, failure, 2]
    assert map_within(range(3), work, limit=8, wait_s=60.0) == [0, failure, 2]
    assert map_but_stragglers(range(3), work, limit=8, wait_s=60.0) == [0, failure, 2]


def test_successes_returns_the_results_without_failures() -> None:
    assert successes([1, 2]) == [1, 2]


def test_failures_of_several_nodes_are_raised_together() -> None:
    first, second = NodeError("a", "x"), NodeError("c", "y")
    with pytest.raises(NodesError, match="2 of 3 nodes failed") as caught:
        successes([first, 1, second])
    assert caught.value.failures == (first, second)


def test_failure_of_the_only_node_names_the_node() -> None:
    with pytest.raises(NodesError, match=r"^a: x$"):
        successes([NodeError("a", "x")])


def test_failure_of_no_node_is_raised_first() -> None:
    with pytest.raises(LaunchError, match="of no node"):
        successes([NodeError("a", "x"), LaunchError("of no node")])
    with pytest.raises(UsageError):
        successes([UsageError("u")])


def test_once_computes_a_value_in_only_one_thread() -> None:
    second = threading.Event()
    made: list[str] = []

    @once
    def slow(name: str) -> list[str]:
        made.append(name)
        if len(made) > 1:
            second.set()
        second.wait(0.3)  # time for another thread to compute it too
        return [name]

    results = map_parallel(range(16), lambda _: slow("a"), limit=16)
    assert made == ["a"]
    assert all(result is results[0] for result in results)
    assert slow("b") == ["b"]


def test_once_retries_a_failed_computation() -> None:
    tries = iter([OSError("busy"), None])

    @once
    def flaky() -> str:
        if error := next(tries):
            raise error
        return "made"

    with pytest.raises(OSError, match="busy"):
        flaky()
    assert flaky() == "made"


def test_once_computes_results_of_different_arguments_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=10)
    computed = once(lambda _: together.wait() >= 0)
    assert map_parallel(range(2), computed, limit=2) == [True, True]
