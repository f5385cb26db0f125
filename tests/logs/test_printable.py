"""A rank may write anything; the terminal of who reads it obeys none of it."""

from __future__ import annotations

import pytest

from orchestrator.logs.lines import FileLines, LogLines, prefixed
from orchestrator.logs.printable import printable


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain text", "plain text"),
        ("tab\tstays, é 损失 too", "tab\tstays, é 损失 too"),
        ("\x1b[1;32mgreen\x1b[0m", "green"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x9b2J", "\\x9b2J"),
        ("a\x00b\x07c\x7f", "a\\x00b\\x07c\\x7f"),
        ("one\u2028[n3:0] two\x85[n3:0] three\x0b", "one\\u2028[n3:0] two\\x85[n3:0] three\\x0b"),
        ("\u202edesrever", "\\u202edesrever"),
        (" 1%|#   |\r50%|##  |\r100%|####|", "100%|####|"),
        ("done\r", "done"),
        ("\r\r", ""),
    ],
)
def test_what_is_shown_cannot_move_the_cursor_or_make_a_line(written: str, shown: str) -> None:
    assert printable(written) == shown


def test_line_that_imitates_a_prefix_has_the_true_one_before_it() -> None:
    assert prefixed(LogLines(0.0, "n1", 2, "out", "[n3:0] loss=0"), "[n1:2]") == "[n1:2] [n3:0] loss=0"


def test_lines_that_are_shown_together_are_each_made_harmless() -> None:
    lines = LogLines(0.0, "n1", 2, "out", "plain\n\x1b[31mred\n10%\r20%")
    assert prefixed(lines, "[n1:2]") == "[n1:2] plain\n[n1:2] red\n[n1:2] 20%"


def test_pieces_of_a_long_line_are_told_apart_from_lines() -> None:
    file = FileLines("n0", 0, "out")
    lines = list(file.feed(0, b"x" * (5 << 19) + b"\nshort\n", 1.0))
    assert [len(line.text) for line in lines] == [1 << 20, 1 << 20, 1 << 19, 5]
    assert [line.goes_on for line in lines] == [False, True, True, False]
    assert prefixed(lines[1], "[n0:0]").startswith("[n0:0] …x")
    assert ["goes_on" in line for some in lines for line in some.to_json()] == [False, True, True, False]


def test_what_is_known_to_be_missing_is_counted() -> None:
    file = FileLines("n0", 0, "out")
    file.marks.add(100, 1.0)
    assert file.known_missing == 100
    list(file.feed(0, b"x" * 60, 1.0))
    assert file.known_missing == 40
