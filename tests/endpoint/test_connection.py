"""Nodes that answer late, half, twice or anything else: every failure names the node, and no request is left waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.endpoint import connection
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.connection import (
    FIRST_BYTES,
    HEADER_LIMIT_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    REPLY_S,
    ReplySize,
    frame,
)
from orchestrator.endpoint.program import MARKER
from orchestrator.errors import NodeError, NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import Program, Request
from orchestrator.transports import base
from orchestrator.transports.base import ChannelClosed
from tests.until import until

NAMES = dict.fromkeys(("python", "hostname", "host_id", "home", "user"), "")
FACTS = {**NAMES, "cards": {}, "pid": 1, "clock_ahead_s": 0.0}
HEADER = {"ok": True, "held_s": 0.0, "monotonic_s": 0.0, "bytes": 0}
PYTHON = f"{MARKER} 3.11.2\n".encode()
HELLO = frame({**HEADER, "number": 0, "facts": FACTS})
OBSERVED = frame({**HEADER, "number": 1, "nodes": []})


class ScriptedNode:
    """A transport and its channel: a program that writes these parts, whatever it reads, and then ends, or is silent."""

    node = "n0"
    remark = ""
    queued_s = 0.0

    def __init__(self, parts: Sequence[bytes], *, ends: bool = True) -> None:
        self.parts = list(parts)
        self.ends = ends
        self.closed = 0
        self.written = 0

    def open(self, argv: Sequence[str]) -> ScriptedNode:
        return self

    def write(self, data: bytes, *, timeout_s: float) -> None:
        self.written += 1

    def read_some(self, *, timeout_s: float) -> bytes:
        if self.parts:
            return self.parts.pop(0)
        if self.ends:
            raise ChannelClosed(1, "killed")
        raise TimeoutError

    def command_to_try(self, argv: Sequence[str]) -> str:
        return f"`ssh n0 {argv[0]}`"

    def close(self) -> None:
        self.closed += 1


def test_answer_in_single_bytes_is_read() -> None:
    node = ScriptedNode([bytes([byte]) for byte in PYTHON + HELLO + OBSERVED])
    assert Endpoint.connect(node, "python3").observe("/a", None) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the endpoint ended, exit status 1: killed"),
        (OBSERVED[:2], "the endpoint ended, exit status 1: killed"),
        (OBSERVED[:-5], "the endpoint ended, exit status 1: killed"),
        (frame({**HEADER, "number": 1, "bytes": 10}) + b"half", "the endpoint ended, exit status 1: killed"),
        (HELLO, "not that of a reply"),
        (frame({"number": 1, "bytes": 0}), "not that of a reply"),
        (frame({**HEADER, "number": 1, "bytes": -1}), "not that of a reply"),
        (frame({**HEADER, "number": 1, "ok": False}), "not that of a reply"),
        (frame({**HEADER, "number": 1, "held_s": "soon"}), "not that of a reply"),
        (b"\0\0\0\2{}", "not that of a reply"),
        (b"\0\0\0\4junk", "not that of a reply"),
        (b"Welcome to n0!\n", "a frame header of 1466264675 bytes"),
        ((HEADER_LIMIT_BYTES + 1).to_bytes(4, "big"), "a frame header of"),
    ],
)
def test_answer_that_is_half_or_garbage_makes_the_node_unreachable(answer: bytes, message: str) -> None:
    node = ScriptedNode([PYTHON + HELLO, answer] if answer else [PYTHON + HELLO])
    endpoint = Endpoint.connect(node, "python3")
    with pytest.raises(Unreachable, match=message) as caught:
        endpoint.observe("/a", None)
    assert caught.value.node == "n0"
    assert node.closed == 1
    with pytest.raises(Unreachable, match="the connection is closed"):
        endpoint.observe("/a", None)


def test_late_answer_is_not_taken_for_that_to_a_later_request() -> None:
    node = ScriptedNode([PYTHON + HELLO], ends=False)
    endpoint = Endpoint.connect(node, "python3")
    with pytest.raises(Unreachable, match="no answer for 30 s"):
        endpoint.observe("/a", None)
    node.parts.append(OBSERVED)
    with pytest.raises(Unreachable, match="the connection is closed"):
        endpoint.observe("/a", None)


def test_repeated_answer_ends_the_connection() -> None:
    node = ScriptedNode([PYTHON + HELLO, OBSERVED + OBSERVED])
    endpoint = Endpoint.connect(node, "python3")
    assert endpoint.observe("/a", None) == []
    with pytest.raises(Unreachable, match="not that of a reply"):
        endpoint.observe("/a", None)
    assert node.closed == 1


class SlowNode(ScriptedNode):
    """Each part takes 3 s by its clock; the first one after the start arrives when the node has read two requests."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        super().__init__([PYTHON + HELLO])
        self.now_s = 0.0
        self.slow = list(parts)
        self.has_both = threading.Event()
        self.requests = -1  # without the first one

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def write(self, data: bytes, *, timeout_s: float) -> None:
        self.requests += 1
        if self.requests == 2:
            self.has_both.set()

    def read_some(self, *, timeout_s: float) -> bytes:
        if self.parts:
            return super().read_some(timeout_s=timeout_s)
        assert self.has_both.wait(60)
        if timeout_s < 3:
            raise TimeoutError
        self.now_s += 3
        return self.slow.pop(0)


def test_reply_that_arrives_after_a_long_one_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat behind the output of ranks, over a slow connection: the node is not silent meanwhile."""
    long = frame({**HEADER, "number": 2, "bytes": 5, "position": "b", "chunks": [], "clocks_ahead_s": {}}) + b"lines"
    half = len(long) // 2
    short = frame({**HEADER, "number": 1, "addresses": ["n1"]})
    node = SlowNode([long[:4], long[4:half], long[half:-1], long[-1:], short[:2], short[2:]])
    for module in (connection, base):
        monkeypatch.setattr(module, "time", node)
    endpoint = Endpoint.connect(node, "python3")
    with ThreadPoolExecutor() as pool:
        reaching = pool.submit(endpoint.reach, ["n1"], 1)  # which waits 8 s
        until(lambda: node.requests == 1, awaited="the first request")
        following = pool.submit(endpoint.follow, "/a", None, {}, position="a")
        assert reaching.result() == {"n1"}
        assert following.result() == ([], "b")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (f"{MARKER} %d.%d\n".encode(), "did not start: the login shell printed"),
        (PYTHON + frame({**HEADER, "number": 0}), "first answer cannot be read: 'facts'"),
        (PYTHON + frame({**HEADER, "number": 0, "facts": NAMES}), "first answer cannot be read: .*pid"),
        (PYTHON + frame({**HEADER, "number": 0, "facts": []}), "first answer cannot be read"),
        (PYTHON + frame({**HEADER, "number": 7}), "not that of a reply"),
        (f"{MARKER} 3.7.1\n".encode(), "Python 3.7.1 is too old"),
    ],
)
def test_first_answer_that_is_garbage_is_an_error_of_the_node(answer: bytes, message: str) -> None:
    node = ScriptedNode([answer])
    with pytest.raises(NodeError, match=message):
        Endpoint.connect(node, "python3")
    assert node.closed >= 1


class Down(ScriptedNode):
    """A node without a route to it."""

    def __init__(self, name: str) -> None:
        super().__init__([])
        self.node = name

    def open(self, argv: Sequence[str]) -> ScriptedNode:
        raise Unreachable(self.node, "no route to host", at=f"{self.node} port 22", hint=self.command_to_try(["true"]))


def test_hundred_of_1024_nodes_that_are_down_are_one_line_and_nothing_is_requested_of_the_others() -> None:
    nodes = tuple(Node(name=f"n{index}") for index in range(1024))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(Inventory(name="many", nodes=nodes), request, run_id="many-20260102-030405-0abc", bundle="b")
    down = {f"n{index}" for index in range(3, 1003, 10)}
    transports = {node.name: Down(node.name) if node.name in down else ScriptedNode([PYTHON + HELLO]) for node in nodes}
    launcher = DirectLauncher(plan, lambda node: transports[node.name])
    with pytest.raises(NodesError) as caught:
        launcher.connect(plan)
    assert str(caught.value) == f"{fold(down)}: no route to host (100 of 1024)"
    assert caught.value.hint == "`ssh n0 true`"
    assert launcher.undo() == []
    launcher.close()
    assert {transport.written for transport in transports.values()} == {0, 1}  # the program alone
    assert all(transport.closed for transport in transports.values())


def _durations(size: ReplySize, bytes_per_s: float, *, limit: int = 1 << 20) -> list[float]:
    """The seconds that each of ten replies takes on a link of that speed."""
    durations = []
    for _ in range(10):
        reply = min(size.bytes, limit)
        durations.append(reply / bytes_per_s)
        size.add(reply, durations[-1])
    return durations


def test_a_reply_takes_less_than_a_second_at_a_megabyte_per_second() -> None:
    durations = _durations(ReplySize(), 1e6)
    assert max(durations) < 0.5
    assert durations[-1] == pytest.approx(REPLY_S, rel=0.01)


def test_replies_follow_the_changes_of_a_link() -> None:
    size = ReplySize()
    assert _durations(size, 1e9)[-1] == pytest.approx((1 << 20) / 1e9)
    assert _durations(size, 1e5)[-1] == pytest.approx(REPLY_S, rel=0.01)
    assert _durations(size, 1e3)[-1] == pytest.approx(LEAST_BYTES / 1e3)
    _durations(size, 1e9, limit=1 << 30)
    assert size.bytes == MOST_BYTES


def test_short_replies_do_not_show_the_speed() -> None:
    size = ReplySize()
    size.add(100, 0.01)
    size.add(0, 0.0)
    assert size.bytes == FIRST_BYTES
    size.add(100, 10.0)
    assert size.bytes == LEAST_BYTES
