"""One reading per interval for all viewers, who get only what has changed; a problem does not hide the last value."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestrator.errors import UsageError
from orchestrator.web import feeds as module
from orchestrator.web.feeds import Feed, Feeds, Reading, Source, changes
from tests.until import until


class Read:
    """A source whose values a test sets; it counts the readings."""

    def __init__(self) -> None:
        self.value: Reading | Exception = Reading({"n": 0})
        self.count = 0
        self.is_closed = threading.Event()

    def __call__(self) -> Reading:
        self.count += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def source(self) -> Source:
        return Source(self, 0.01, self.is_closed.set)


@pytest.fixture
def feeds() -> Iterator[Feeds]:
    made = Feeds()
    yield made
    made.close()


def _value(feed: Feed) -> object:
    return None if feed.text is None else json.loads(feed.text)


def test_twenty_viewers_share_each_reading(feeds: Feeds) -> None:
    read = Read()
    with ExitStack() as stack:
        viewed = [stack.enter_context(feeds.viewing({"a": ("key", read.source)}))["a"] for _ in range(20)]
        assert len({id(feed) for feed in viewed}) == 1
        until(lambda: read.count >= 3, awaited="readings")
        assert [thread.name for thread in threading.enumerate()].count("feed") == 1


def test_nothing_is_read_without_viewers_and_the_source_is_closed(
    feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_S", 0.0)
    read = Read()
    with feeds.viewing({"a": ("key", read.source)}):
        until(lambda: read.count, awaited="a reading")
    assert read.is_closed.wait(30)
    count = read.count
    with feeds.viewing({"a": ("key", read.source)}) as later:
        until(lambda: read.count > count, awaited="a reading of a new feed")
        assert not later["a"].is_over


def test_only_changes_are_sent_and_the_end_follows_the_last(feeds: Feeds) -> None:
    read = Read()
    with feeds.viewing({"a": ("key", read.source)}) as viewed:
        sent = changes(feeds, viewed, 0.2)
        assert next(sent) == ("a", '{"n": 0}')
        count = read.count
        assert next(sent) is None  # it was read, and is the same
        assert read.count > count
        read.value = Reading({"n": 1})
        assert next(sent) == ("a", '{"n": 1}')
        read.value = Reading({"n": 2}, is_final=True)
        assert list(sent) == [("a", '{"n": 2}')]
        count = read.count
        assert list(changes(feeds, viewed, 0.2)) == [("a", '{"n": 2}')]  # of a viewer who comes later
        assert read.count == count


def test_problem_is_shown_beside_the_last_value(feeds: Feeds) -> None:
    read = Read()
    with feeds.viewing({"a": ("key", read.source)}) as viewed:
        until(lambda: _value(viewed["a"]) == {"n": 0}, awaited="the value")
        read.value = UsageError("--rank x: not a list of ranks", hint="as in --rank 3")
        shown = {"n": 0, "problem": "--rank x: not a list of ranks; as in --rank 3"}
        until(lambda: _value(viewed["a"]) == shown, awaited="the problem")
        read.value = Reading({"n": 1})
        until(lambda: _value(viewed["a"]) == {"n": 1}, awaited="the value")


def test_bug_ends_the_feed_and_is_shown(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    read = Read()
    read.value = KeyError("x")
    with feeds.viewing({"a": ("key", read.source)}) as viewed:
        assert list(changes(feeds, viewed, 30.0)) == [("a", '{"problem": "a bug in orch: KeyError: \'x\'"}')]
        until(lambda: reported, awaited="the traceback")
        assert viewed["a"].is_over


def test_viewers_end_with_the_server(feeds: Feeds) -> None:
    read = Read()
    with feeds.viewing({"a": ("key", read.source)}) as viewed:
        sent = changes(feeds, viewed, 60.0)
        next(sent)
        threading.Timer(0.05, feeds.close).start()
        assert list(sent) == []
