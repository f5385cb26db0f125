"""The frame of `orch top`, by pure functions: what is shown at which size, and what the keys mark and open."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.columns import width_of
from orchestrator.cli.screen import changes, keys_of
from orchestrator.cli.top_frame import Selection, frame, press, rows
from orchestrator.run import RunState
from orchestrator.verdict.health import Known, Observed
from orchestrator.verdict.overview import Overview, overview
from tests.verdict.test_overview import NOW_S, REPORT, STUCK, node, observed, record

CARDS: Any = {
    "time": NOW_S - 30,
    "cards": [{"index": 0, "utilization_percent": 97}, {"index": 1, "utilization_percent": 12, "temperature_c": 91}],
    "expected": 2,
}
MACHINE: Any = {
    "monotonic_s": 1.0,
    "memory_total": 100,
    "memory_available": 25,
    "disk": {"total": 10**12, "free": 120 * 10**9},
    "shm": None,
    "ports": [],
}
TWO = Known(record(), NOW_S, observed=observed(node(), node("n1", (2, 3), cards=CARDS, machine=MACHINE)))


def _screen(lines: list[str]) -> str:
    return "\n".join(lines)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5), (1, 1)])
@pytest.mark.parametrize("colour", [False, True])
def test_frame_fits_the_terminal(size: tuple[int, int], *, colour: bool) -> None:
    wide = replace(
        TWO,
        observed=observed(*(node(f"節點{number}", (number,)) for number in range(100))),
        missing={"n1": "不可達" * 40},
    )
    for known in (TWO, wide, Known(record(), NOW_S)):
        for selection in (
            Selection(colour=colour),
            Selection(row=99, open=frozenset(["n1"]), is_help=True, colour=colour),
            Selection(note="x" * 300, colour=colour),
        ):
            lines = frame(overview(known), *size, selection)
            assert len(lines) <= size[1]
            assert max(width_of(re.sub(r"\x1b\[\d+m", "", line)) for line in lines) <= size[0]


def test_80_by_24_shows_the_verdict_the_step_and_the_nodes_that_spread_first() -> None:
    lines = frame(overview(replace(TWO, missing={"n2": "no route to host"})), 80, 24, Selection())
    text = _screen(lines)
    assert len(lines) == 24
    assert lines[0].split() == ["a-run", "RUNNING", "2m00s"]
    assert lines[1] == "n2 does not answer: no route to host"
    assert "step 93/100, ETA 1s, loss 2.5, 2 steps/s" in text
    assert "saved: step 80; a kill now loses 13 steps, 6s of work" in text
    table = lines[lines.index(next(line for line in lines if "NODE" in line)) :]
    assert table[0].split() == ["NODE", "STATE", "STEP", "PHASE", "CARDS", "SEEN", "MEM", "DISK", "FREE", "HEAT"]
    assert [line[2:4] for line in table[1:4]] == ["n2", "n1", "n0"]  # away, cards that spread, even
    assert "12-97 %" in table[2]
    assert "120GB" in table[2]
    assert lines[-1].startswith("q quit")


def test_run_that_is_over_has_nothing_to_lose() -> None:
    text = _screen(frame(overview(replace(TWO, record=record(RunState.DONE))), 80, 24, Selection()))
    assert "saved: step 80" in text
    assert "a kill" not in text


def test_what_nobody_reports_has_no_column() -> None:
    header = next(
        line
        for line in frame(overview(Known(record(), NOW_S, observed=observed(node()))), 200, 24, Selection())
        if "NODE" in line
    )
    assert header.split() == ["NODE", "STATE", "STEP", "PHASE", "SEEN"]


def test_narrow_terminals_leave_out_the_least_important_columns() -> None:
    header = next(line for line in frame(overview(TWO), 40, 24, Selection()) if "NODE" in line)
    assert header.split()[:3] == ["NODE", "STATE", "STEP"]
    assert "DISK" not in header


def test_no_colour_without_colour_and_the_marked_row_is_visible() -> None:
    plain = frame(overview(TWO), 80, 24, Selection(row=1))
    assert "\x1b" not in _screen(plain)
    assert [line[2:4] for line in plain if line.startswith(">")] == ["n0"]
    coloured = frame(overview(TWO), 80, 24, Selection(row=1, colour=True))
    assert sum("\x1b[7m" in line for line in coloured) == 1
    assert "\x1b[7mn0" in _screen(coloured)


def test_printed_frame_has_neither_keys_nor_empty_lines_at_its_end() -> None:
    lines = frame(overview(TWO), 80, 200, Selection(has_keys=False))
    assert "q quit" not in _screen(lines)
    assert lines[-1]
    assert len(lines) < 24


def test_keys_choose_open_and_close() -> None:
    found = overview(TWO)

    def listed(selection: Selection) -> list[tuple[str, str]]:
        return [(row.node, row.cells["NODE"].strip()) for row in rows(found, selection.open)]

    selection = Selection()
    assert [name for name, _ in listed(selection)] == ["n1", "n0"]
    selection = press(selection, "enter", rows(found, selection.open))
    assert [cell for _, cell in listed(selection)] == ["n1 (2-3)", "rank 2", "rank 3", "card 0", "card 1", "n0 (0-1)"]
    for _ in range(9):
        selection = press(selection, "down", rows(found, selection.open))
    assert selection.row == 5
    selection = press(press(selection, "k", rows(found, selection.open)), "left", rows(found, selection.open))
    assert (selection.row, selection.open) == (0, frozenset())
    assert press(selection, "?", rows(found, selection.open)).is_help
    assert not press(press(selection, "?", rows(found, selection.open)), "?", rows(found, selection.open)).is_help
    assert press(Selection(row=5), "enter", []) == Selection()


def test_marked_row_of_many_is_on_the_screen() -> None:
    many = replace(TWO, observed=observed(*(node(f"n{number}", (number,)) for number in range(64))))
    lines = frame(overview(many), 80, 24, Selection(row=63))
    assert any(line.startswith("> n63") for line in lines)


def test_stuck_ranks_are_named_in_the_header_and_marked_in_their_node() -> None:
    found = overview(replace(TWO, observed=observed(*STUCK)))
    text = _screen(frame(found, 80, 24, Selection(open=frozenset(["n1"]))))
    assert "no progress for 38s: rank 3 on n1" in text
    assert [row.cells["BEHIND"] for row in rows(found, frozenset(["n1"]))][:3] == ["1", "0", "1"]


def test_values_of_a_node_that_is_away_are_shown_with_their_age() -> None:
    away = Known(
        record(), NOW_S, observed=[Observed(node(), NOW_S - 600, is_current=False)], missing={"n0": "no route"}
    )
    [row] = rows(overview(away), frozenset())
    assert (row.cells["STATE"], row.cells["STEP"], row.cells["SEEN"]) == ("no answer", "93", "10m00s ago")


def test_controls_of_programs_never_reach_the_terminal() -> None:
    evil = node("n0", progress={0: {**REPORT, "phase": "\x1b[2Jst\nep"}})
    found: Overview = overview(
        Known(record(message="\x1b]0;x\x07"), NOW_S, observed=observed(evil), missing={"n1": "\x1b[31m"})
    )
    lines = frame(found, 80, 24, Selection())
    assert "\x1b" not in _screen(lines)
    assert not any("\n" in line for line in lines)


def test_only_lines_that_have_changed_are_written() -> None:
    before = ["one", "two", "three"]
    assert changes(before, before) == ""
    assert changes(before, ["one", "TWO", "three"]) == "\x1b[2;1HTWO\x1b[0m\x1b[K"
    assert changes(before, ["one"]) == "\x1b[2;1H\x1b[J"
    assert changes([], ["one"]) == "\x1b[1;1Hone\x1b[0m\x1b[K"


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("jq", ["j", "q"]),
        ("\x1b[A\x1b[B\r", ["up", "down", "enter"]),
        ("\x1bOA", ["up"]),
        ("\x1b[5~x", ["page up", "x"]),
        ("\x1b[15~q", ["q"]),  # F5 is nothing
        ("\x1b", ["\x1b"]),
    ],
)
def test_keys_of_typed_characters(typed: str, keys: list[str]) -> None:
    assert keys_of(typed) == keys
