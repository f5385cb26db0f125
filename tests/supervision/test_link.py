"""The link between the process that owns a run and its viewer."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from orchestrator.endpoint.access import PromptCancelled
from orchestrator.logs.lines import LogLines
from orchestrator.progress import Progress
from orchestrator.supervision.link import (
    FRAME_CHARACTERS,
    MOST_WAITING,
    OwnerLink,
    ViewerGone,
    answer,
    frame,
    lines_frame,
    messages,
)
from orchestrator.supervision.viewers_terminal import ViewersTerminal
from tests.until import until

FRAMES = MOST_WAITING + 8  # more than the socket and the queue hold
WARNINGS = 1000
ANSWER = frame({"answer": None}, b"text")


@contextmanager
def _linked() -> Iterator[tuple[OwnerLink, socket.socket]]:
    """The owner's end of a link, and the viewer's."""
    viewer, owner = socket.socketpair()
    with viewer:
        viewer.sendall(frame({"follow": True}))
        link = OwnerLink(owner)
        yield link, viewer
    link.join()


def _line(number: int) -> LogLines:
    return LogLines(float(number), "n0", 0, "out", "x" * FRAME_CHARACTERS)


def test_viewer_that_reads_nothing_holds_up_log_lines_alone_and_gets_all_of_them_later() -> None:
    with _linked() as (link, viewer):
        assert link.request == {"follow": True}
        written: list[int] = []

        def write() -> None:
            for number in range(FRAMES):
                link.write([_line(number)])
                written.append(number)

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        until(lambda: len(written) >= MOST_WAITING, awaited="the queue to be full")
        for number in range(WARNINGS):
            link.progress(Progress("connecting", 1, 1, ("n0",), share=number / WARNINGS))
            link.warn("slow")
        assert len(written) < FRAMES
        counts: Counter[str] = Counter()
        times = []
        for message in messages(viewer):
            counts[message["kind"]] += 1
            times += [group.time for group in message.get("lines", ())]
            if (counts["lines"], counts["warning"]) == (FRAMES, WARNINGS):
                until(lambda: not writing.is_alive(), awaited="the last write to return")
                link.end()
        assert times == list(range(FRAMES))
        assert counts["progress"] <= 1  # only the newest is kept
        assert not link.is_open


def test_log_lines_arrive_as_they_are_and_their_text_is_sent_without_escapes() -> None:
    groups = [
        LogLines(1.5, "n0", 3, "err", 'loss "3.1"\n\n\tü\0\x1b[0m'),
        LogLines(2.5, "n1", None, "event", "\udcff from an agent's JSON", is_routine=True),
        LogLines(3.5, "n1", 0, "out", ""),
        LogLines(4.5, "n1", 0, "out", "\x1b" * 10_000, is_continuation=True),
        LogLines(5.5, "n1", 0, "err", " 50%|█████", is_unfinished=True),
    ]
    with _linked() as (link, viewer), closing(messages(viewer)) as received:
        link.write(groups)
        assert next(received)["lines"] == groups
    characters = sum(len(group.text) for group in groups)
    assert len(lines_frame(groups)) < characters + 100 * len(groups)


@pytest.mark.parametrize(("fold", "kinds"), [(True, ["lines", "warning"]), (False, ["warning"])])
def test_viewer_that_folds_lines_gets_a_message_without_lines(*, fold: bool, kinds: list[str]) -> None:
    """It keeps lines to fold others with them, and prints them when it is called."""
    viewer, owner = socket.socketpair()
    with viewer:
        viewer.sendall(frame({"fold": fold}))
        link = OwnerLink(owner)
        link.write([])
        link.warn("after the lines")
        link.end()
        assert [message["kind"] for message in messages(viewer)] == kinds
    link.join()


def test_viewer_answers_a_question_or_cancels_it() -> None:
    with _linked() as (link, viewer):
        for text in ("word ü".encode("latin-1"), None):
            answer(viewer, text)
            assert link.answer_to("password: ", echo=False) == text
        with closing(messages(viewer)) as questions:
            assert next(questions) == {"kind": "question", "question": "password: ", "echo": False}


def test_unanswered_question_is_given_up_and_its_late_answer_is_not_that_to_the_next() -> None:
    """A password must not be sent to another node."""
    with _linked() as (link, viewer):
        link.answer_s = 0.01
        terminal = ViewersTerminal(link, is_terminal=True)
        with pytest.raises(PromptCancelled):
            terminal.prompt("n0: password: ")
        with pytest.raises(PromptCancelled), terminal.locked():  # the other logins are refused at once
            pytest.fail("the user is prompted")
        link.answer_s = None
        answer(viewer, b"n0's")
        answer(viewer, b"n1's")
        assert link.answer_to("n1: password: ", echo=False) == b"n1's"


@pytest.mark.parametrize("size", range(len(ANSWER)))
def test_viewer_that_ends_at_any_byte_of_a_frame_has_gone(size: int) -> None:
    with _linked() as (link, viewer):
        viewer.sendall(ANSWER[:size])
        viewer.close()
        until(lambda: not link.is_open, awaited="the end of the link")
        link.warn("nobody reads this")
        assert link.answer_to("password: ", echo=False) is None
        with pytest.raises(ViewerGone):
            link.write([])
