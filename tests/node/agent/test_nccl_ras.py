"""
NCCL's RAS on suspicion of a hang: which version is queried, the evidence, and that nothing waits for it.

The server is a stand-in that speaks the protocol and writes the JSON of NCCL 2.29, as documented in
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html and in src/ras/client_support.cc of NCCL: no NCCL runs here.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent import nccl_ras
from orchestrator.node.agent.nccl_ras import LIMIT_S, RasQuery, facts, may_be_queried
from orchestrator.node.system.fast_stdlib import Socket
from tests.until import until
from trainer.runtime.channel import nccl

VERSION = [2, 29, 7]
PIDS = {1000, 1001}
EQUAL = "all ranks answer, and have launched the same numbers of collectives"


def _rank(number: int, *, reduced: int = 641, gathered: int = 3, async_error: int = 0) -> dict[str, Any]:
    status = {
        "init_state": 0,
        "async_error": async_error,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": gathered, "ReduceScatter": 0, "AllReduce": reduced}
    return {**_process(number), "status": status, "collective_counts": counts}


def _missing(number: int, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    return {**_process(number), "status": {"unresponsive": unresponsive, "considered_dead": dead}}


def _process(number: int) -> dict[str, Any]:
    return {
        "rank": number,
        "host": f"172.16.64.{210 + number // 8}",
        "pid": 1000 + number,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
    }


def _communicator(ranks: Sequence[dict[str, Any]], missing: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    counted = {"size": len(ranks) + len(missing), "ranks_count": len(ranks), "missing_ranks_count": len(missing)}
    names = {"hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e"}
    return {**names, **counted, "ranks": list(ranks), "missing_ranks": list(missing)}


def _answer(*communicators: dict[str, Any]) -> dict[str, Any]:
    head = {
        "nccl_version": "2.29.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2025-12-19 13:06:53",
    }
    footer = {"ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}
    return {**head, "communicators_count": len(communicators), "communicators": list(communicators), **footer}


@pytest.mark.parametrize(
    ("communicators", "expected"),
    [
        ([_communicator([_rank(0), _rank(1)])], [EQUAL]),
        ([_communicator([_rank(0)], [_missing(1)])], ["rank 1 does not answer (process 1001 on 172.16.64.210)"]),
        (
            [_communicator([_rank(0), _rank(1)], [_missing(8, dead=True), _missing(9, dead=True)])],
            ["ranks 8-9 considered dead (process 1008 on 172.16.64.211, process 1009 on 172.16.64.211)"],
        ),
        (
            [_communicator([_rank(0)], [_missing(1, unresponsive=False)])],
            ["rank 1 has left the communicator (process 1001 on 172.16.64.210)"],
        ),
        (
            [_communicator([_rank(0, async_error=6), _rank(1)])],
            ["rank 0: remote error (process 1000 on 172.16.64.210)"],
        ),
        (
            [_communicator([_rank(0), _rank(1, reduced=640), _rank(2)])],
            ["AllReduce: rank 1 has launched 640, ranks 0,2 641"],
        ),
        (  # another collective
            [_communicator([_rank(0), _rank(1, reduced=640, gathered=4)])],
            ["AllGather: rank 0 has launched 3, rank 1 4", "AllReduce: rank 1 has launched 640, rank 0 641"],
        ),
        (  # the same process, in two communicators
            [_communicator([_rank(0)], [_missing(3)]), _communicator([_rank(0), _rank(1), _rank(2)], [_missing(3)])],
            ["rank 3 does not answer (process 1003 on 172.16.64.210)"],
        ),
        ([_communicator([_rank(4), _rank(5)])], []),  # of another job
    ],
)  # fmt: skip
def test_answer_names_ranks_that_are_missing_failed_or_behind(
    communicators: list[dict[str, Any]], expected: list[str]
) -> None:
    assert facts(_answer(*communicators), PIDS, communicators[-1]["size"]) == expected


def test_a_rank_of_a_smaller_communicator_is_named_as_such() -> None:
    (fact,) = facts(_answer(_communicator([_rank(0)], [_missing(1)])), PIDS, world_size=8)
    assert fact == "rank 1 of a communicator of 2 does not answer (process 1001 on 172.16.64.210)"


@pytest.mark.parametrize(
    ("version", "environ", "groups", "expected"),
    [
        ([2, 29, 2], {}, {"nccl:0": {"enqueued": 9, "completed": 8}}, True),
        ([2, 30, 7], {}, {}, True),
        ([2, 27, 7], {}, {}, False),  # crashes
        ([2, 28, 9], {}, {}, False),
        ([2, 29, 7], {"NCCL_RAS_ENABLE": "0"}, {}, False),
        ([2, 29, 7], {}, {"nccl:1": {"enqueued": 1, "completed": 0}}, False),  # its communicator may be in creation
    ],
)
def test_only_a_safe_version_is_queried_and_not_during_initialisation(
    version: list[int], environ: dict[str, str], groups: dict[str, Any], *, expected: bool
) -> None:
    ranks: Any = {0: {"groups": groups}}
    assert may_be_queried({"version": version, "environ": environ}, ranks) is expected
    assert not may_be_queried(None, ranks)


@contextmanager
def ras_server(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A stand-in for the thread of a rank: its address, and the requests that it got; it never answers if `answer` is None."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(4096))
                if answer is None:
                    ended.wait()
                else:
                    connection.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n" + answer)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"localhost:{server.getsockname()[1]}", requests
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _query(address: str, clock: Any = lambda: 0.0) -> RasQuery:
    return RasQuery({"version": VERSION, "environ": {"NCCL_RAS_ADDR": address}}, PIDS, 2, clock)


def test_request_and_answer() -> None:
    answer = json.dumps(_answer(_communicator([_rank(0)], [_missing(1)]))).encode()
    with ras_server(answer) as (address, requests):
        query = _query(address)
        result = until(query.poll, awaited="the answer")
    assert result == {
        "version": "2.29.7",
        "facts": ["rank 1 does not answer (process 1001 on 172.16.64.210)"],
        "problem": "",
    }
    assert requests == [b"client protocol 2\nset format json\ntimeout 5\nstatus\n"]


def test_kernel_without_ipv6_is_queried_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ipv6(family: int, kind: int) -> Socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return Socket(family, kind)

    monkeypatch.setattr(nccl_ras, "Socket", without_ipv6)
    with ras_server(json.dumps(_answer(_communicator([_rank(0), _rank(1)]))).encode()) as (address, _):
        assert until(_query(address).poll, awaited="the answer")["facts"] == [EQUAL]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "the answer cannot be read: "),
        (b'{"communicators": [{', "the answer cannot be read: "),
        (b'{"communicators": [{}]}', "the answer cannot be read: 'size'"),
        (json.dumps(_answer(_communicator([_rank(5)]))).encode(), "the answer is that of another job"),
    ],
)
def test_unusable_answer_is_a_problem(answer: bytes, problem: str) -> None:
    with ras_server(answer) as (address, _):
        result = until(_query(address).poll, awaited="the answer")
    assert result["facts"] == []
    assert result["problem"].startswith(problem)


def test_a_server_that_does_not_answer_holds_up_nothing() -> None:
    now_s = [0.0]
    with ras_server(None) as (address, requests):
        query = _query(address, lambda: now_s[0])
        until(lambda: query.poll() or requests, awaited="the request")
        now_s[0] = LIMIT_S - 1
        assert query.poll() is None
        now_s[0] = LIMIT_S
        result = query.poll()
    assert result is not None
    assert result["problem"] == "no answer within 15 s"


@pytest.mark.parametrize("address", ["localhost:1", "no.such.host.invalid:28028", "28028"])
def test_no_server_is_a_problem(address: str) -> None:
    result = until(_query(address).poll, awaited="the refusal")
    assert result["problem"] == f"nothing listens on {address}"


def test_a_rank_reports_the_nccl_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:1")
    monkeypatch.delenv("NCCL_RAS_ENABLE", raising=False)
    library = SimpleNamespace(version=lambda: (2, 29, 7, "b"))
    for initialised, expected in (
        (True, {"version": VERSION, "environ": {"NCCL_RAS_ADDR": "localhost:1"}}),
        (False, None),
    ):
        cuda = SimpleNamespace(is_initialized=lambda known=initialised: known, nccl=library)
        torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert nccl() == expected
