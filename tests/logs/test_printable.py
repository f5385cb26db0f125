"""Any output of a rank is shown without effect on the terminal."""

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
def test_shown_text_cannot_move_the_cursor_or_start_a_line(written: str, shown: str) -> None:
    assert printable(written) == shown


def test_line_that_imitates_a_prefix_has_the_real_prefix_before_it() -> None:
    assert prefixed(LogLines(0.0, "n1", 2, "out", "[n3:0] loss=0"), "[n1:2]") == "[n1:2] [n3:0] loss=0"


def test_every_line_of_a_group_is_made_printable() -> None:
    lines = LogLines(0.0, "n1", 2, "out", "plain\n\x1b[31mred\n10%\r20%")
    assert prefixed(lines, "[n1:2]") == "[n1:2] plain\n[n1:2] red\n[n1:2] 20%"


def test_pieces_of_a_long_line_are_marked_as_continuations() -> None:
    file = FileLines("n0", 0, "out")
    lines = list(file.feed(0, b"x" * (5 << 19) + b"\nshort\n", 1.0))
    assert [len(line.text) for line in lines] == [1 << 20, 1 << 20, 1 << 19, 5]
    assert [line.is_continuation for line in lines] == [False, True, True, False]
    assert prefixed(lines[1], "[n0:0]").startswith("[n0:0] …x")
    assert ["goes_on" in line for group in lines for line in group.to_json()] == [False, True, True, False]


def test_bytes_that_are_known_to_be_missing_are_counted() -> None:
    file = FileLines("n0", 0, "out")
    file.write_times.add(100, 1.0)
    assert file.missing_bytes == 100
    list(file.feed(0, b"x" * 60, 1.0))
    assert file.missing_bytes == 40
