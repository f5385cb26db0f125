"""The state of a watched run below its log: its text, its redraws on a terminal, and the end of the screen."""

from __future__ import annotations

import io
import math
import re
import time
from dataclasses import replace

import pytest

from orchestrator.cli import footer
from orchestrator.cli.console import LogView
from orchestrator.cli.footer import Footer, Losses, footer_text, sparkline
from orchestrator.cli.watch import result_lines
from orchestrator.logs.lines import LogLines
from orchestrator.logs.selection import Selection
from orchestrator.run import RunRecord, RunState
from orchestrator.verdict.live import LiveRuns
from orchestrator.verdict.live_run import LiveRun
from orchestrator.verdict.training import Training
from tests.until import until

TRAINING = Training(93, steps=100, loss=2.414, step_s=1.2, per_step=4320.0, unit="tokens", written_s=1000.0)
LIVE = LiveRun("RUNNING", begun_s=873.0, nodes="n0,n1", training=TRAINING)
DONE = RunRecord("t-1", "ssh", RunState.DONE, "", {}, {}, {}, {}, started=True)


@pytest.mark.parametrize(
    ("live", "text"),
    [
        (LIVE, "RUNNING 2m07s · step 93/100 · loss 2.41 · 3.6k tokens/s · ETA 8s · n0,n1"),
        (replace(LIVE, training=None), "RUNNING 2m07s · 45% bar · n0,n1"),
        (replace(LIVE, training=Training(7, phase="eval")), "RUNNING 2m07s · step 7 · eval · n0,n1"),
        (
            replace(LIVE, training=Training(7, loss=math.nan, step_s=0.5)),
            "RUNNING 2m07s · step 7 · loss nan · 2 steps/s · n0,n1",
        ),
        (
            replace(LIVE, attempt=2),
            "RUNNING 2m07s · attempt 2 · step 93/100 · loss 2.41 · 3.6k tokens/s · ETA 8s · n0,n1",
        ),
        (
            replace(LIVE, waits="attempt 2 begins when n1 answers"),
            "RUNNING 2m07s · attempt 2 begins when n1 answers · n0,n1",
        ),
        (
            LiveRun("PENDING", 0.0, waits="job 7 is PENDING (Priority)\x1b[2J"),
            "PENDING 16m40s · job 7 is PENDING (Priority)\\x1b[2J",
        ),
    ],
)
def test_state_of_a_run_in_one_line(live: LiveRun, text: str) -> None:
    assert footer_text(live, 1000.0, "45% bar") == text


def test_remaining_time_counts_down_between_two_reports() -> None:
    assert [re.findall("ETA [^ ]*", footer_text(LIVE, 1000.0 + after_s)) for after_s in (0, 3, 8)] == [
        ["ETA 8s"],
        ["ETA 5s"],
        [],
    ]


@pytest.mark.parametrize(
    ("values", "columns", "line"),
    [
        ([8, 7, 6, 5, 4, 3, 2, 1], 8, "█▇▆▅▄▃▂▁"),
        ([4, 4, 2, 2], 2, "█▁"),
        ([1, 1, 1], 8, "▁▁▁"),
        ([5, math.nan, math.inf, 1], 8, "█▁"),
        ([3], 8, ""),
        ([], 8, ""),
    ],
)
def test_sparkline(values: list[float], columns: int, line: str) -> None:
    assert sparkline(values, columns) == line


def test_losses_of_repeated_steps_are_replaced_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Losses()
    for step, loss in ((1, 8.0), (2, 4.0), (3, 9.0), (2, 4.0), (3, 1.0)):
        losses.add(step, loss)
    assert losses.text() == "8 █▄▁ 1"
    assert losses.text(15.0, 1.0) == "15 █▅▃▁▁ 1"  # those of the program's summary
    monkeypatch.setattr(footer, "MOST_LOSSES", 8)
    for step in range(100):
        losses.add(step, float(step))
    assert len(losses._by_step) <= 8
    assert losses.text().endswith("█ 99")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("has_colour", [False, True])
def test_state_is_drawn_below_new_lines_and_at_most_four_times_a_second(*, has_colour: bool) -> None:
    terminal, began_s = Terminal(), time.monotonic()
    line = Footer(terminal, has_colour=has_colour)
    for step in range(40):
        line.show(replace(LIVE, begun_s=time.time(), training=Training(step)))
        with line.erased():
            terminal.write(f"log {step}\n")
        time.sleep(0.01)
    until(lambda: "step 39" in terminal.getvalue(), awaited="the last state")
    line.end()
    written, draws = terminal.getvalue(), terminal.getvalue().count("RUNNING")
    assert draws <= (time.monotonic() - began_s) / footer.REDRAW_S + 1
    assert written.endswith(footer.ERASE_LINE)
    assert not re.search(r"RUNNING[^\r]*log", written), "a log line is printed into the state"
    assert ("\x1b[32m" in written) == has_colour


def test_nothing_is_written_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer, "TICK_S", 0.005)
    monkeypatch.setattr(footer, "REDRAW_S", 0.005)
    calls: list[float] = []

    def text(*_: object) -> str:
        calls.append(time.monotonic())
        return "RUNNING"

    monkeypatch.setattr(footer, "footer_text", text)
    terminal = Terminal()
    line = Footer(terminal, has_colour=False)
    line.show(LIVE)
    until(lambda: len(calls) > 20, awaited="20 looks")
    line.end()
    assert terminal.getvalue() == f"{footer.ERASE_LINE}RUNNING{footer.ERASE_LINE}"


def test_progress_bar_is_shown_below_the_lines_until_its_line_is_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bars: list[str] = []
    monkeypatch.setattr(Footer, "show_bar", lambda _footer, text: bars.append(text))
    view = LogView(as_json=False, is_live=True)
    view.write([LogLines(1.0, "n0", 0, "err", "\r 1%\r 2%", is_unfinished=True), LogLines(1.0, "n0", 1, "out", "up")])
    view.write([LogLines(2.0, "n0", 0, "err", " 2%\r100%")])
    view.close()
    assert bars == [" 2%", ""]
    assert capsys.readouterr().out == "[n0:1] up\n[n0:0] 100%\n"


def test_losses_of_single_ranks_are_left_out_and_their_other_lines_are_not() -> None:
    selection = Selection(has_rank_metrics=False)
    text = "step=1 loss=5.0\nready\nstep=2 loss=4.0"
    assert selection.of(LogLines(0.0, "n0", 0, "out", text)) == LogLines(0.0, "n0", 0, "out", text)
    assert selection.of(LogLines(0.0, "n0", 3, "out", text)) == LogLines(0.0, "n0", 3, "out", "ready")
    assert selection.of(LogLines(0.0, "n0", 3, "out", "step=1 loss=5.0")) is None
    assert Selection().of(LogLines(0.0, "n0", 3, "out", text)) == LogLines(0.0, "n0", 3, "out", text)
    of_program = LogLines(
        0.0, "n0", 3, "out", "step=1 loss=5.0 lr=1"
    )  # a line of a program, which may print it on the last rank alone
    assert selection.of(of_program) == of_program


def test_state_survives_the_link_and_names_its_nodes() -> None:
    record = replace(DONE, state=RunState.RUNNING, created="2026-11-29T03:00:00+00:00", attempt=2)
    live = LiveRuns().now(record, [], ["n0", "n1", "n2", "n3"], "job 7 waits")
    assert (live.nodes, live.waits, live.attempt) == ("n[0-3]", "job 7 waits", 2)
    assert LiveRun.from_json({**replace(live, training=TRAINING).to_json(), "new": 1}) == replace(
        live, training=TRAINING
    )


@pytest.mark.parametrize(
    ("record", "loss", "is_diagnosed", "lines"),
    [
        (DONE, "", False, ["next        orch stats t-1"]),
        (
            replace(
                DONE,
                summary={
                    "steps": 20,
                    "first_loss": 5.5098,
                    "last_loss": 3.0171,
                    "tokens_per_s": 2269.28,
                    "step_time_p50_s": 1.8293,
                    "step_time_p99_s": 2.3057,
                    "wall_s": 90.2,
                    "checkpoint": "/w/runs/t-1/checkpoints/step_20",
                },
            ),
            "5.51 █▁ 3.02",
            False,
            [
                "steps       20",
                "loss        5.51 █▁ 3.02",
                "speed       2,269 tokens/s, 1.83 s/step (p99 2.31 s)",
                "time        1m30s",
                "files       /w/runs/t-1/checkpoints/step_20",
                "next        orch stats t-1",
                "            orch cp t-1:checkpoints/step_20 DIR",
            ],
        ),
        (
            replace(DONE, summary={"first_loss": 5.5, "last_loss": 3.0}),
            "",
            False,
            ["loss        5.5, at the end 3", "next        orch stats t-1"],
        ),
        (replace(DONE, state=RunState.FAILED), "", True, ["            orch logs t-1 --tail 50"]),
        (
            replace(DONE, state=RunState.FAILED),
            "",
            False,
            ["next        orch diagnose t-1", "            orch logs t-1 --tail 50"],
        ),
        (replace(DONE, state=RunState.STOPPED), "", False, []),
    ],
)
def test_end_of_the_screen(record: RunRecord, loss: str, is_diagnosed: bool, lines: list[str]) -> None:
    assert result_lines(record, loss, is_diagnosed=is_diagnosed) == lines
