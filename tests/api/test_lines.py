"""Lines that a thread reads are taken in order, with its messages, and its error comes last."""

from __future__ import annotations

import threading

import pytest

from orchestrator.api.lines import WAITING_GROUPS, LogLine, lines_of
from orchestrator.errors import LaunchError
from orchestrator.logs.lines import LogLines
from orchestrator.usecases.reports.log_reader import Viewer
from tests.until import until


def _group(text: str) -> LogLines:
    return LogLines(1.0, "n0", 3, "out", text)


def test_lines_messages_and_the_error_are_in_order() -> None:
    taken: list[str] = []

    def read(viewer: Viewer) -> None:
        viewer.write([_group("a\nb")])
        viewer.warn("n1: no answer")
        viewer.write([_group("c\x1b[0m")])
        raise LaunchError("the log on n1 is gone")

    with pytest.raises(LaunchError, match="n1 is gone"):
        taken.extend(str(line) for line in lines_of(read, taken.append))
    assert taken[:3] == ["[n0:3] a", "[n0:3] b", "n1: no answer"]
    assert taken[3].startswith("[n0:3] c")
    assert "\x1b" not in taken[3]


def test_line_has_its_values() -> None:
    [line] = lines_of(lambda viewer: viewer.write([_group("a")]), print)
    assert line == LogLine(1.0, "n0", 3, "out", "a")


@pytest.mark.parametrize("count", [1, 3 * WAITING_GROUPS])
def test_reader_ends_with_the_iterator(count: int) -> None:
    """Both if it waits until lines are taken, and if it has none to offer."""
    begun, ended = threading.Event(), threading.Event()

    def read(viewer: Viewer) -> None:
        try:
            viewer.write([_group("a")] * count)
            begun.set()
            while True:
                viewer.write([])
        finally:
            ended.set()

    lines = lines_of(read, print)
    assert next(lines).text == "a"
    if count == 1:
        until(begun.is_set, awaited="the second write")
    lines.close()  # type: ignore[attr-defined]  # a generator
    assert ended.is_set()
