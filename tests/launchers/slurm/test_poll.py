"""The thread that polls a job while its run is watched: an error in it reaches the watching thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from orchestrator.errors import LaunchError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.job import SILENT, JobStatus
from orchestrator.launchers.slurm.poll import Poll
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport
from tests.until import until


class Polled(DirectLauncher):
    """A launcher whose job status is computed by the test."""

    def __init__(self, query: Callable[[], JobStatus]) -> None:
        plan = make_plan(
            Inventory(name="demo", nodes=(Node(name="n0"),)),
            Request("slurm", Program("executable", ("true",))),
            run_id="demo-20260102-030405-0abc",
            bundle="b",
        )
        super().__init__(plan, lambda node: LocalTransport(node.name))
        self._query = query
        self.attempts_read = 0

    def job_status(self, job: str | None) -> JobStatus | None:  # the only job
        return self._query()

    def attempt(self) -> int:
        """Count the requests."""
        self.attempts_read += 1
        return super().attempt()


def _raised_by(poll: Poll) -> Exception | None:
    try:
        poll.result()
    except RuntimeError as error:
        return error
    return None


def test_error_that_ends_the_polling_is_raised_by_every_result() -> None:
    failure = RuntimeError("can't start new thread")

    def query() -> JobStatus:
        raise failure

    with Poll(Polled(query), "1", attempt=1) as poll:
        until(lambda: _raised_by(poll), awaited="the polling to end")
        with pytest.raises(RuntimeError) as caught:
            poll.result()
    assert caught.value is failure


def test_unreachable_machine_is_a_status_and_no_error() -> None:
    def query() -> JobStatus:
        raise LaunchError("login0: no route to host")

    with Poll(Polled(query), "1", attempt=3) as poll:
        expected = JobStatus(SILENT, "login0: no route to host")
        result = until(lambda: (poll.result().status == expected) and poll.result(), awaited="the first poll to end")
    assert result.attempt == 3


def test_error_of_a_launcher_that_was_closed_after_the_end_is_ignored() -> None:
    is_closed = threading.Event()

    def query() -> JobStatus:
        is_closed.wait()
        raise RuntimeError("the connection was closed")

    before = set(threading.enumerate())
    with Poll(Polled(query), "1", attempt=1) as poll:
        started = set(threading.enumerate()) - before
    is_closed.set()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)
    assert poll.result().status == JobStatus(SILENT)


def test_launcher_closed_during_a_query_stays_closed() -> None:
    is_closed = threading.Event()

    def query() -> JobStatus:
        is_closed.wait()
        return JobStatus("RUNNING")

    before, launcher = set(threading.enumerate()), Polled(query)
    with Poll(launcher, "1", attempt=1):
        started = set(threading.enumerate()) - before
    is_closed.set()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)
    assert launcher.attempts_read == 0
