"""A rank may write anything; the terminal of who reads it obeys none of it."""

from __future__ import annotations

import pytest

from orchestrator.logs.merge import FileLines, LogLine, prefixed
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
    assert prefixed(LogLine(0.0, "n1", 2, "out", "[n3:0] loss=0")) == "[n1:2] [n3:0] loss=0"


def test_pieces_of_a_long_line_are_told_apart_from_lines() -> None:
    file = FileLines("n0", 0, "out")
    lines = list(file.feed(0, b"x" * (5 << 19) + b"\nshort\n", 1.0))
    assert [len(line.text) for line in lines] == [1 << 20, 1 << 20, 1 << 19, 5]
    assert [line.goes_on for line in lines] == [False, True, True, False]
    assert prefixed(lines[1]).startswith("[n0:0] …x")
    assert "goes_on" not in lines[0].to_json()
    assert lines[1].to_json()["goes_on"] is True


def test_what_is_known_to_be_missing_is_counted() -> None:
    file = FileLines("n0", 0, "out")
    file.mark(100, 1.0)
    assert file.known_missing == 100
    list(file.feed(0, b"x" * 60, 1.0))
    assert file.known_missing == 40
