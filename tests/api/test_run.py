"""Runs as objects: the results of a finished run, and the end of a live one."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.errors import UsageError
from orchestrator.run import RunRecord, RunState
from tests.api.local import working_folder
from tests.grounds.cli import Orch
from tests.until import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("api")]  # all read the same finished runs
PROGRAM = 'echo "rank $RANK"; echo "trouble $RANK" >&2; echo "$RANK" >result-$RANK.txt'
SAVING = 'trap "echo saved; exit 0" USR2; echo ready; while :; do sleep 0.05; done'
LATE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with working_folder(tmp_path_factory.mktemp("api")) as folder:
        yield folder


@pytest.fixture(scope="module")
def states() -> list[RunRecord]:
    """The records that on_change got."""
    return []


@pytest.fixture(scope="module")
def finished(folder: Path, states: list[RunRecord]) -> orchestrator.Run:
    """A run of two nodes with two ranks each."""
    assert folder.exists()
    run = orchestrator.ssh_launch(["sh", "-c", PROGRAM], name="first", note="<b>bold</b>", tags=["a", "b"])
    assert run.wait(LATE_S, on_change=states.append).state is RunState.DONE
    return run


@pytest.fixture(scope="module")
def second(folder: Path, finished: orchestrator.Run) -> orchestrator.Run:
    """A run of one rank that has failed, after the finished one."""
    assert folder.exists()
    assert finished.done()
    run = orchestrator.ssh_launch(["sh", "-c", "exit 7"], name="second", shape="1x1", tags="b", env={"MODE": "x"})
    assert run.wait(LATE_S).state is RunState.FAILED
    return run


def test_change_of_the_state_is_reported_once(finished: orchestrator.Run, states: list[RunRecord]) -> None:
    reported = [record.state for record in states]
    assert finished.done()
    assert reported[-1] is RunState.DONE
    assert len(set(reported)) == len(reported)


def test_awaited_runs_return_their_records(finished: orchestrator.Run, second: orchestrator.Run) -> None:
    async def both() -> tuple[RunRecord, RunRecord]:
        return await asyncio.gather(finished, second)

    assert [record.id for record in asyncio.run(both())] == [finished.id, second.id]


def test_lines_are_those_of_the_command(finished: orchestrator.Run, folder: Path) -> None:
    lines = list(finished.logs(stream="out"))
    assert sorted(map(str, lines)) == [f"[n{rank // 2}:{rank}] rank {rank}" for rank in range(4)]
    assert sorted(map(str, lines)) == sorted(Orch(folder)("logs", finished.id, "--stream", "out").stdout.splitlines())
    assert all(0 <= time.time() - line.time < LATE_S * 10 for line in lines)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"ranks": 3, "stream": "err"}, ["[n1:3] trouble 3"]),
        ({"ranks": "0-1", "nodes": "n0", "grep": "rank [1-9]"}, ["[n0:1] rank 1"]),
        ({"tail": 0}, []),
        ({"follow": True, "ranks": 2, "stream": "out"}, ["[n1:2] rank 2"]),
        ({"stream": "batch"}, []),
    ],
)
def test_lines_are_selected(finished: orchestrator.Run, options: dict[str, Any], lines: list[str]) -> None:
    assert [str(line) for line in finished.logs(**options)] == lines


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": "n7"}, "has no such node"),
        ({"ranks": 9}, "ranks 0 to 3"),
        ({"stream": "in"}, "no such stream"),
        ({"tail": -1}, "tail=-1"),
    ],
)
def test_impossible_selection_is_refused(finished: orchestrator.Run, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        list(finished.logs(**options))


def test_files_are_copied(finished: orchestrator.Run, tmp_path: Path) -> None:
    [copied] = finished.copy("result-3.txt", tmp_path)
    assert (copied.target, copied.target.read_text()) == (tmp_path / "result-3.txt", "3\n")
    with pytest.raises(UsageError, match="exists"):
        finished.copy("result-3.txt", tmp_path)
    with pytest.raises(UsageError, match="has result-9"):
        finished.copy("result-9.txt", tmp_path)


def test_program_without_metrics_is_named(finished: orchestrator.Run) -> None:
    with pytest.raises(UsageError, match=r"has no metrics\.jsonl"):
        finished.metrics()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["first", "second"]),
        ({"tags": ["a", "b"]}, ["first"]),
        ({"tags": "b", "last": 1}, ["second"]),
        ({"states": "failed"}, ["second"]),
        ({"states": ["DONE", RunState.FAILED]}, ["first", "second"]),
        ({"states": "LOST"}, []),
    ],
)
@pytest.mark.usefixtures("second")
def test_runs_are_selected(options: Mapping[str, Any], names: list[str]) -> None:
    found = [run for run in orchestrator.runs(**options) if run.record.state is not RunState.STOPPED]
    assert [run.id.split("-")[0] for run in found] == names


@pytest.mark.parametrize(
    ("options", "why"), [({"states": "over"}, "PENDING, STARTING"), ({"last": 0}, "from 1"), ({"sweep": "x"}, "sweep")]
)
def test_unknown_selection_of_runs_is_refused(folder: Path, options: Mapping[str, Any], why: str) -> None:
    assert folder.exists()
    with pytest.raises(UsageError) as raised:
        orchestrator.runs(**options)
    assert why in f"{raised.value} {raised.value.hint}"


def test_comparison_is_that_of_the_command(finished: orchestrator.Run, second: orchestrator.Run, folder: Path) -> None:
    rows = orchestrator.compare([finished, "second"])
    printed = json.loads(Orch(folder)("diff", finished.id, second.id, "--json").stdout)["differences"]
    assert [tuple(row.values()) for row in rows] == [tuple(difference.values()) for difference in printed]
    assert list(rows[0]) == ["topic", "name", finished.id, second.id]
    three = orchestrator.compare([finished, finished, second])
    assert list(three) == list(rows)
    for runs in ([finished], "second"):
        with pytest.raises(UsageError, match="at least two"):
            orchestrator.compare(runs)


def test_notebook_shows_runs_as_tables_without_markup_of_the_user(
    finished: orchestrator.Run, second: orchestrator.Run
) -> None:
    html = finished._repr_html_()
    assert f'<td style="text-align: left">{finished.id}</td>' in html
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    table = orchestrator.Runs([finished, second])._repr_html_()
    assert (table.count("<tr>"), table.count("<th ")) == (3, len(re.findall("<th [^>]*>[a-z]+</th>", table)))
    assert "swept" not in table
    for text in (html, table):
        assert not re.search(r"<script|<b>|color|background", text)


def test_misuse_of_stop_is_refused(finished: orchestrator.Run) -> None:
    with pytest.raises(UsageError, match="save=True"):
        finished.stop(grace_s=5)
    with pytest.raises(UsageError, match="need time"):
        finished.stop(save=True, grace_s=0)


def test_live_run_is_followed_and_saves_before_its_end(folder: Path) -> None:
    assert folder.exists()
    with orchestrator.ssh_launch(["sh", "-c", SAVING], shape="1x1", name="saving") as run:
        lines = run.logs(follow=True)
        assert str(next(lines)) == "[n0:0] ready"
        threads = threading.active_count()
        lines.close()  # type: ignore[attr-defined]  # a generator
        until(lambda: threading.active_count() < threads, awaited="the end of the thread that reads")
        assert not run.done()
        reported: list[RunRecord] = []
        with pytest.raises(TimeoutError):
            run.wait(0.5, on_change=reported.append)
        assert len({record.state for record in reported}) == len(reported) > 0
        began_s = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(run, 0.1))
        assert time.monotonic() - began_s < LATE_S / 2
        messages: list[str] = []
        assert run.stop(save=True, grace_s=30, on_message=messages.append).state is RunState.STOPPED
        assert "[n0:0] saved" in map(str, run.logs())
        assert any("save and end" in message for message in messages)


def test_exception_in_a_with_block_stops_the_run(folder: Path) -> None:
    assert folder.exists()
    with pytest.raises(ZeroDivisionError), orchestrator.ssh_launch("sleep 1000", shape="1x1", name="stopped") as run:
        raise ZeroDivisionError
    assert run.record.state is RunState.STOPPED
    with orchestrator.ssh_launch("sleep 1000", shape="1x1", name="stopped") as run:
        assert not run.done()
    assert not run.record.state.final
    run.stop()
    until(run.done, awaited="the end")


def test_dry_run_is_the_text_of_the_command_and_starts_nothing(folder: Path) -> None:
    words = ("ssh-launch", "-j", "2x2", "--name", "planned", "--dry-run", "--", "echo", "hello")
    printed = Orch(folder)(*words).stdout
    text = orchestrator.ssh_launch(["echo", "hello"], shape="2x2", name="planned", dry_run=True)

    def without_id(text: str) -> str:
        return re.sub(r"planned-\d{8}-\d{6}-[0-9a-f]{4}", "ID", text)

    assert without_id(text) == without_id(printed)
    assert not list(folder.glob(".orch-home/runs/planned*"))


def test_warnings_of_a_dry_run_and_sweeps_are_in_its_text(folder: Path) -> None:
    assert folder.exists()
    values = {"lr": [1e-3, "2e-3"], "seed": range(2)}
    text = orchestrator.submit("echo {lr} {seed}", sweep=values, at_once=1, no_check=True, dry_run=True)
    assert text.startswith("# Warning: --no-check: ")
    assert re.findall(r'"args": \["echo", "([^"]*)", "([^"]*)"\]', text) == [
        (lr, seed) for lr in ("0.001", "2e-3") for seed in "01"
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"at_once": 2}, "at_once"),
        ({"sweep": {"lr": ["1,2"]}}, "has a comma"),
        ({"sweep": {"lr": []}}, "not a setting with different values"),
        ({"sweep": {"lr": [1, 2]}, "here": True}, "job array"),
    ],
)
def test_impossible_sweep_is_refused(folder: Path, options: dict[str, Any], why: str) -> None:
    assert folder.exists()
    with pytest.raises(UsageError, match=why):
        orchestrator.submit("echo {lr}", **options)


def test_damaged_record_is_a_warning(tmp_path: Path) -> None:
    with working_folder(tmp_path):
        damaged = tmp_path / ".orch-home" / "runs" / "lost-20260102-030405-0abc"
        damaged.mkdir(parents=True)
        (damaged / "run.json").write_text("{")
        found = orchestrator.runs()
    assert found == []
    assert "lost-20260102-030405-0abc" in found.warnings[0]
