"""The progress of a launch, and the lines of a watched run, on a terminal and elsewhere."""

from __future__ import annotations

import sys

import pytest

from orchestrator.cli.console import LogView, ProgressLine
from orchestrator.cli.footer import ERASE_LINE
from orchestrator.cli.numbers import size_text
from orchestrator.logs.lines import LogLines, NodeLines
from orchestrator.logs.selection import Selection
from orchestrator.progress import Progress, Reporter
from orchestrator.transports import terminal
from tests.until import until


def _on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_progress_on_a_terminal_is_one_line_that_is_erased(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_terminal(monkeypatch)
    monkeypatch.setattr("time.monotonic", iter([0.0, 50.0, 60.0, 100.0, 140.0]).__next__)
    with ProgressLine() as progress:
        progress.update(Progress("connecting", 64, 52))
        progress.update(Progress("pushing", 64, 64, size_bytes=100_000_000))
        progress.update(Progress("pushing", 64, 64, size_bytes=100_000_000, share=0.1))
        progress.update(Progress("pushing", 64, 32, size_bytes=100_000_000, share=0.55))
        progress.update(Progress("pushing", 64, 2, ("n62", "n63"), 100_000_000, 0.9))
        progress.warn("the link x")
    progress.update(Progress("pushing", 64, 1, ("n63",)))
    assert capsys.readouterr().err.replace(ERASE_LINE, "|") == (
        "|orch: connecting 12/64"
        "|orch: pushing 100.0 MB, 0/64"
        "|orch: pushing 100.0 MB, 0/64"
        "|orch: pushing 100.0 MB, 32/64, 72.0 MB/s, 40 s left"
        "|orch: pushing 100.0 MB, 62/64, waiting for n[62-63], 64.0 MB/s, 10 s left"
        "|orch: warning: the link x\n|"
    )


def test_progress_is_cut_to_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_terminal(monkeypatch)
    with ProgressLine() as progress:
        progress.update(Progress("connecting", 2, 1, ("x" * 100,)))
    assert {len(line) for line in capsys.readouterr().err.split(ERASE_LINE) if line} == {79}


def test_without_a_terminal_only_slow_work_is_reported_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress.update(Progress("connecting", 2, 2, ("n0", "n1")))
    assert capsys.readouterr().err == ""
    printed = ""

    def slow_work() -> str:
        nonlocal printed
        printed += capsys.readouterr().err
        return printed

    with ProgressLine(first_s=0.01) as progress:
        progress.update(Progress("connecting", 5, 1, ("n4",)))
        until(slow_work, awaited="a line")
    assert printed == "orch: connecting 4/5, waiting for n4\n"


def test_reports_have_the_count_and_share_of_many_nodes_and_the_names_of_few() -> None:
    reports: list[Progress] = []
    reporter = Reporter("pushing", [f"n{index}" for index in range(1024)], reports.append)
    reporter.advanced("n0", 0.5)
    reporter.advanced("n0", 0.75)
    for index in range(1022):
        reporter.ended(f"n{index}")
    reporter.advanced("n0", 0.9)  # of a node that has ended
    first, *_, last = reports
    assert len(reports) == 1 + 2 + 1022
    assert first == Progress("pushing", 1024, 1024)
    assert [(report.waiting, report.share * 1024) for report in reports[1:4]] == [(1024, 0.5), (1024, 0.75), (1023, 1)]
    assert {len(report.names) for report in reports[:-2]} == {0}
    assert (last.waiting, last.names) == (2, ("n1022", "n1023"))


def test_nothing_is_written_over_a_prompt() -> None:
    written: list[str] = []
    prompts = terminal.Terminal()
    with prompts.locked():
        prompts.unless_prompting(lambda: written.append("during a prompt"))
    prompts.unless_prompting(lambda: written.append("after it"))
    assert written == ["after it"]


def test_ranks_that_are_neighbours_have_different_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_terminal(monkeypatch)
    LogView(as_json=False).write(LogLines(0.0, "n0", rank, "out", "text") for rank in (0, 1, 2, None))
    prefixes = [line.partition("[n0")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(set(prefixes)) == 4
    assert all(prefix.startswith("\x1b[") for prefix in prefixes)


@pytest.mark.parametrize(
    ("event", "is_shown"),
    [
        ('"agent-started"', False),
        ('"rank-started"', False),
        ('"rank-exited", "code": 0', False),
        ('"rank-exited", "code": 1', True),
        ('"rank-exited", "code": null, "signal": "SIGKILL"', True),
        ('"agent-finished", "state": "DONE"', False),
        ('"agent-finished", "state": "FAILED"', True),
        ('"note"', True),
        ('"rank-exited", "signal": "SIGTERM"', False),
        ('"rank-exited", "signal": "SIGKILL"', True),
        ('"agent-finished", "state": "STOPPED"', False),
        ('"agent-finished", "state": "FAILED", "exit": {"code": 1}', False),
        ('"stopping", "reason": "requested by SIGTERM"', False),
        ('"stopping", "reason": "rank 3 (pid 1) exited with code 1"', False),
        ('"stopping", "reason": "the guard of the agent was killed"', True),
    ],
)
def test_watched_run_shows_no_event_of_each_successful_run_nor_of_ranks_that_are_ended_with_others(
    event: str, *, is_shown: bool
) -> None:
    [line] = NodeLines("n0").feed(
        "events.jsonl", 0, f'{{"time": 1.0, "event": {event}, "text": "x, after the stop"}}\n'.encode(), 1.0
    )
    assert (Selection(has_routine=False).of(line) is not None) == is_shown
    assert Selection(has_events=False).of(line) is None


def test_quiet_screen_shows_the_output_of_a_program_that_starts_its_ranks() -> None:
    [line] = NodeLines("n0").feed("program.out", 0, b"hello\n", 1.0)
    assert Selection(has_events=False, has_routine=False).of(line) == line


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (490_200, "490.2 kB"), (2e12, "2.0 TB")])
def test_sizes_have_a_unit(count: float, text: str) -> None:
    assert size_text(count) == text
