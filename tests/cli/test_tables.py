"""Tables in any width: no word is cut, wide characters take two columns, and states have colours where colours are wanted."""

from __future__ import annotations

import io

import pytest

from orchestrator.cli import console
from orchestrator.cli.columns import width_of
from orchestrator.cli.tables import table_lines

COLUMNS = ("VARIABLE", "VALUE", "REASON")
ROWS = (
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "set by orch, as the dump names the rank that hangs"),
    ("RANK", "0-7", "numbers the ranks"),
)
NAMES = [row[0] for row in ROWS]


@pytest.mark.parametrize("width", [None, 100, 60, 50])
def test_names_and_words_are_whole_in_every_width(width: int | None) -> None:
    lines = list(table_lines(COLUMNS, ROWS, width))
    assert all(width is None or width_of(line) <= width for line in lines)
    words = {word for line in lines for word in line.split()}
    assert words == {word for row in (COLUMNS, *ROWS) for cell in row for word in cell.split()}
    assert [line.split()[0] for line in lines if line.startswith(tuple(NAMES))] == NAMES


def test_cells_of_several_lines_stay_in_their_column() -> None:
    assert list(table_lines(COLUMNS, ROWS, 60)) == [
        "VARIABLE                    VALUE  REASON",
        "TORCH_NCCL_DUMP_ON_TIMEOUT  1      set by orch, as the dump",
        "                                   names the rank that hangs",
        "RANK                        0-7    numbers the ranks",
    ]


def test_each_row_is_an_entry_where_the_longest_words_do_not_stand_side_by_side() -> None:
    assert list(table_lines(COLUMNS, ROWS, 36)) == [
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "  VALUE   1",
        "  REASON  set by orch, as the dump",
        "          names the rank that hangs",
        "RANK",
        "  VALUE   0-7",
        "  REASON  numbers the ranks",
    ]


def test_wide_characters_take_two_columns() -> None:
    rows = (("基线", "x"), ("run", "y"))
    assert list(table_lines(("NAME", "NOTE"), rows)) == ["NAME  NOTE", "基线  x", "run   y"]
    assert list(table_lines(("NAME", "NOTE"), (("基线", "学习率 0.1"),), 15)) == [
        "NAME  NOTE",
        "基线  学习率",
        "      0.1",
    ]


def test_shortened_columns_keep_each_row_on_one_line() -> None:
    lines = list(table_lines(("ID", "NOTE"), (("a-run", "a note of many words"),), 20, cut=("NOTE",)))
    assert lines == ["ID     NOTE", "a-run  a note of ma…"]
    lines = list(table_lines(("ID", "NOTE"), (("a-run", "a note of many words"),), 18, cut=("NOTE",)))
    assert lines == ["a-run", "  NOTE  a note of", "        many words"], "a note of a few characters is worth nothing"


class Terminal(io.StringIO):
    """A terminal that keeps what is printed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "is_terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)
def test_states_and_severities_have_colours_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], *, is_terminal: bool, expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    out, err = (Terminal() if is_terminal else io.StringIO() for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    console.print_table(("RUN", "STATE"), [("FAILED-run", "FAILED"), ("b", "DONE"), ("c", "it FAILED again")])
    console.warn("a disk is full")
    lines = out.getvalue().splitlines()
    assert ("\x1b[31mFAILED\x1b[0m" in lines[1]) is expected
    assert ("\x1b[32mDONE\x1b[0m" in lines[2]) is expected
    assert lines[1].startswith("FAILED-run  ")
    assert lines[3] == "c           it FAILED again"
    assert ("\x1b[33mwarning\x1b[0m" in err.getvalue()) is expected
