"""The search of a run's logs on a node."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.node.endpoint.search import LATE_S, lines_between, period_s, search
from orchestrator.node.run.oom_kills import oom_kills
from orchestrator.node.system.files import write_json
from orchestrator.node.system.machine import process_record
from tests.grounds import components

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import PatternBody, SearchReply, SearchRequest
    from orchestrator.node.run.agent_files import AgentBody

KERNEL = """\
[   10.500000] Out of memory: Killed process 1 (before the run)
[  100.000000] eth0: link up
and its second line
[  200.250000] Out of memory: Killed process 2 (python3)
"""


@pytest.fixture
def request_(tmp_path: Path) -> SearchRequest:
    for node in ("n0", "n1"):
        (tmp_path / node).mkdir()
    (tmp_path / "n0" / "rank-0.err").write_text("ok\nKeyError: 'a'\n")
    (tmp_path / "n1" / "rank-1.out").write_text("KeyError: 'b'\n" + "step=1\n" * 1000 + "KeyError: 'c'\n")
    (tmp_path / "n1" / "events.jsonl").write_text("KeyError: 'd'\n")
    pattern: PatternBody = {"id": "error", "expression": "Error", "texts": ["Error"], "lines": 1}
    return {
        "attempt_dir": str(tmp_path),
        "nodes": None,
        "patterns": [pattern],
        "kernel": [],
        "max_bytes": 1 << 20,
        "wait_s": 60.0,
    }


def hits(reply: SearchReply) -> list[tuple[str, str, int, str]]:
    return [(log["node"], log["name"], hit["line"], hit["text"]) for log in reply["logs"] for hit in log["hits"]]


def test_the_output_of_all_nodes_is_searched(request_: SearchRequest) -> None:
    reply, payload = search(request_, b"")
    assert hits(reply) == [
        ("n0", "rank-0.err", 2, "KeyError: 'a'"),
        ("n1", "rank-1.out", 1, "KeyError: 'b'"),
        ("n1", "rank-1.out", 1002, "KeyError: 'c'"),
    ]
    assert (payload, reply["remarks"]) == (b"", [])
    assert search({**request_, "nodes": ["n1"]}, b"")[0]["logs"][0]["node"] == "n1"


def test_the_first_exit_of_a_node_is_searched_unless_the_agent_had_ended_the_ranks(
    request_: SearchRequest, tmp_path: Path
) -> None:
    killed: dict[str, object] = {"event": "rank-exited", "rank": 3, "code": None, "signal": "SIGKILL"}
    stopping: dict[str, object] = {"event": "stopping", "text": ""}
    for node, events in (("n0", (killed, stopping)), ("n1", (stopping, killed))):
        lines = [json.dumps({**event, "time": 10.0 + number}) + "\n" for number, event in enumerate(events)]
        (tmp_path / node / "events.jsonl").write_text("".join(lines))
    pattern: PatternBody = {"id": "killed", "expression": "killed", "texts": ["killed"], "lines": 1}
    reply, _ = search({**request_, "patterns": [pattern]}, b"")
    assert hits(reply) == [("n0", "first exit", 1, "rank 3 on n0 was killed by SIGKILL")]


def test_ranks_that_were_done_before_the_end_of_the_others_are_reported(
    request_: SearchRequest, tmp_path: Path
) -> None:
    events: list[dict[str, object]] = [
        {"event": "rank-exited", "rank": 2, "code": 0, "done": True},
        {"event": "stopping", "text": ""},
        {"event": "rank-exited", "rank": 3, "code": 0, "done": True},
    ]
    lines = [json.dumps({**event, "time": 10.0 + number}) + "\n" for number, event in enumerate(events)]
    (tmp_path / "n0" / "events.jsonl").write_text("".join(lines))
    pattern: PatternBody = {"id": "exit", "expression": "exited", "texts": ["exited"], "lines": 1}
    reply, _ = search({**request_, "patterns": [pattern]}, b"")
    assert hits(reply) == [("n0", "first exit", 1, "rank 2 on n0 had exited 0 before the failure")]


@pytest.mark.parametrize(
    ("before", "of_run", "report"),
    [
        (-1, None, "killed 1 of the processes on this node for lack of memory since"),
        (0, None, None),
        (-3, 0, "killed 3 processes on this node for lack of memory, and none in the cgroup of this run"),
        (-3, 2, "killed 2 of the processes in the cgroup of this run"),
        (0, 0, None),
    ],
)
def test_processes_that_the_kernel_killed_are_counted_without_its_log(
    before: int, of_run: int | None, report: str | None, request_: SearchRequest, tmp_path: Path
) -> None:
    now = oom_kills()
    if now is None:
        components.unavailable("this kernel does not count them")
    agent = {**process_record(), "started": 0.0, "oom_kills": now + before}
    write_json(str(tmp_path / "n0" / "agent.json"), agent)
    finished = {"time": 1.0, "event": "agent-finished", "text": "", "state": "FAILED", "oom_kills": of_run}
    (tmp_path / "n0" / "events.jsonl").write_text(json.dumps(finished) + "\n")
    pattern: PatternBody = {
        "id": "oom",
        "expression": "lack of memory",
        "texts": ["lack of memory"],
        "lines": 1,
    }
    reply, _ = search({**request_, "nodes": ["n0"], "patterns": [pattern], "kernel": ["oom"]}, b"")
    found = [(node, name, report is not None and report in text) for node, name, _, text in hits(reply)]
    assert found == ([("n0", "kernel log", True)] if report else [])


def test_of_a_large_file_its_start_and_its_end_are_searched(request_: SearchRequest) -> None:
    reply, _ = search({**request_, "nodes": ["n1"], "max_bytes": 42}, b"")
    assert hits(reply) == [("n1", "rank-1.out", 1, "KeyError: 'b'"), ("n1", "rank-1.out", 2, "KeyError: 'c'")]
    assert [(log["skipped"], log["bytes"]) for log in reply["logs"]] == [(0, 21), (7007, 21)]
    assert reply["remarks"] == ["n1: only parts of rank-1.out were searched: it is too large"]
    assert reply["is_partial"]


def test_the_lines_of_the_end_are_numbered_from_the_start(
    request_: SearchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = search({**request_, "nodes": ["n1"]}, b"")
    for end_bytes in (1, 14, 15, 20, 21, 22, 3000, 7013, 7014, 7020):
        monkeypatch.setattr("orchestrator.node.endpoint.search.END_BYTES", end_bytes)
        reply, _ = search({**request_, "nodes": ["n1"]}, b"")
        assert hits(reply) == hits(whole), end_bytes
        for hit in (hit for log in (*reply["logs"], *whole["logs"]) for hit in log["hits"]):
            hit["after"] = ""  # a hit at the end of a part has no lines after it
        assert (reply, end_bytes) == (whole, end_bytes)


def test_a_file_for_which_no_time_is_left_is_named(request_: SearchRequest) -> None:
    reply, _ = search({**request_, "nodes": ["n0"], "wait_s": 0.0}, b"")
    assert reply["logs"] == []
    assert reply["remarks"] == ["n0: rank-0.err was not searched: the time was over"]
    assert reply["is_partial"]


def test_a_search_that_runs_out_of_time_has_searched_the_ends_of_all_files(
    request_: SearchRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n0" / "rank-0.out").write_text("KeyError: 'a'\n" * 1000 + "KeyError: 'the end'\n")
    monkeypatch.setattr("orchestrator.node.endpoint.search.END_BYTES", 20)
    moments = iter(range(100))
    clock = SimpleNamespace(monotonic=lambda: float(next(moments)))  # enough for one block of each file
    monkeypatch.setattr("orchestrator.node.endpoint.search.time", clock)
    reply, _ = search({**request_, "nodes": ["n0"], "wait_s": 3.5}, b"")
    assert hits(reply) == [("n0", "rank-0.err", 2, "KeyError: 'a'"), ("n0", "rank-0.out", 1, "KeyError: 'the end'")]
    assert reply["remarks"] == ["n0: only parts of rank-0.out were searched: the time was over"]


def test_the_kernel_log_is_that_of_the_machine_of_the_agent(request_: SearchRequest, tmp_path: Path) -> None:
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
    agent = cast("AgentBody", {**process_record(), "start_time": 0, "clock_ahead_s": 1000.0})
    assert period_s(str(tmp_path), agent) == (0.0, math.inf)
    finished = {"time": 1120.0, "event": "agent-finished", "text": "", "state": "FAILED", "exit": None}
    (tmp_path / "events.jsonl").write_text(f"{json.dumps(finished)}\n")
    assert period_s(str(tmp_path), agent) == (0.0, 120.0)
    assert list(lines_between(KERNEL, 0.0, 120.0)) == KERNEL.splitlines(keepends=True)[:-1]
    assert list(lines_between(KERNEL, 0.0, 200.25 - LATE_S)) == KERNEL.splitlines(keepends=True)
