"""The search of a run's logs on a node."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.node.endpoint.search import LATE_S, lines_between, period_s, search
from orchestrator.node.files import write_json
from orchestrator.node.machine import process_record

if TYPE_CHECKING:
    from orchestrator.node import messages

KERNEL = """\
[   10.500000] Out of memory: Killed process 1 (before the run)
[  100.000000] eth0: link up
and its second line
[  200.250000] Out of memory: Killed process 2 (python3)
"""


@pytest.fixture
def request_(tmp_path: Path) -> messages.SearchRequest:
    for node in ("n0", "n1"):
        (tmp_path / node).mkdir()
    (tmp_path / "n0" / "rank-0.err").write_text("ok\nKeyError: 'a'\n")
    (tmp_path / "n1" / "rank-1.out").write_text("KeyError: 'b'\n" + "step=1\n" * 1000 + "KeyError: 'c'\n")
    (tmp_path / "n1" / "events.jsonl").write_text("KeyError: 'd'\n")
    pattern: messages.PatternBody = {"id": "error", "expression": "Error", "texts": ["Error"], "lines": 1}
    return {
        "attempt_dir": str(tmp_path),
        "nodes": None,
        "patterns": [pattern],
        "kernel": [],
        "max_bytes": 1 << 20,
        "wait_s": 60.0,
    }


def hits(reply: messages.SearchReply) -> list[tuple[str, str, int, str]]:
    return [(log["node"], log["name"], hit["line"], hit["text"]) for log in reply["logs"] for hit in log["hits"]]


def test_the_output_of_all_nodes_is_searched(request_: messages.SearchRequest) -> None:
    reply, payload = search(request_, b"")
    assert hits(reply) == [
        ("n0", "rank-0.err", 2, "KeyError: 'a'"),
        ("n1", "rank-1.out", 1, "KeyError: 'b'"),
        ("n1", "rank-1.out", 1002, "KeyError: 'c'"),
    ]
    assert (payload, reply["remarks"]) == (b"", [])
    assert search({**request_, "nodes": ["n1"]}, b"")[0]["logs"][0]["node"] == "n1"


def test_of_a_large_file_the_end_is_searched(request_: messages.SearchRequest) -> None:
    reply, _ = search({**request_, "nodes": ["n1"], "max_bytes": 21}, b"")
    assert hits(reply) == [("n1", "rank-1.out", 2, "KeyError: 'c'")]
    assert reply["logs"][0]["skipped"] == 7007


def test_a_file_for_which_no_time_is_left_is_named(request_: messages.SearchRequest) -> None:
    reply, _ = search({**request_, "nodes": ["n0"], "wait_s": 0.0}, b"")
    assert (reply["logs"], reply["remarks"]) == ([], ["n0: rank-0.err was not searched: the time was over"])


def test_a_file_that_is_cut_by_the_time_is_named(request_: messages.SearchRequest, tmp_path: Path) -> None:
    with (tmp_path / "n0" / "rank-0.err").open("r+b") as file:
        file.truncate(1 << 33)  # without blocks on the disk; its search takes seconds
    reply, _ = search({**request_, "nodes": ["n0"], "max_bytes": 1 << 33, "wait_s": 0.2}, b"")
    assert reply["remarks"] == ["n0: rank-0.err: only its first part was searched: the time was over"]
    assert hits(reply) == [("n0", "rank-0.err", 2, "KeyError: 'a'")]


def test_the_kernel_log_is_that_of_the_machine_of_the_agent(request_: messages.SearchRequest, tmp_path: Path) -> None:
    write_json(str(tmp_path / "n0" / "agent.json"), {**process_record(), "boot_id": "of another machine"})
    write_json(str(tmp_path / "n1" / "agent.json"), process_record())
    reply, _ = search(request_, b"")
    searched = {log["node"] for log in reply["logs"] if log["name"] == "kernel log"}
    unreadable = {remark.partition(": the log of the kernel cannot be read")[0] for remark in reply["remarks"]}
    assert "n1" in searched | unreadable
    assert "n0" not in searched | unreadable


def test_lines_of_the_kernel_from_before_the_run_are_left_out() -> None:
    assert list(lines_between(KERNEL, 60.0, math.inf)) == KERNEL.splitlines(keepends=True)[1:]
    assert list(lines_between(KERNEL, 300.0, math.inf)) == []


def test_lines_of_the_kernel_from_after_the_run_are_left_out(tmp_path: Path) -> None:
    agent = cast("messages.AgentBody", {**process_record(), "start_time": 0, "clock_ahead_s": 1000.0})
    assert period_s(str(tmp_path), agent) == (0.0, math.inf)
    finished = {"time": 1120.0, "event": "agent-finished", "text": "", "state": "FAILED", "exit": None}
    (tmp_path / "events.jsonl").write_text(f"{json.dumps(finished)}\n")
    assert period_s(str(tmp_path), agent) == (0.0, 120.0)
    assert list(lines_between(KERNEL, 0.0, 120.0)) == KERNEL.splitlines(keepends=True)[:-1]
    assert list(lines_between(KERNEL, 0.0, 200.25 - LATE_S)) == KERNEL.splitlines(keepends=True)
