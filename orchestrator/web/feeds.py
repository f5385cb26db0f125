"""Values that are read once per interval for all viewers, by a thread each, as long as somebody views them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchError, machine_error

KEPT_S = 60.0  # after its last viewer has left, as for one that loads the page again


@dataclass(frozen=True, slots=True)
class Reading:
    """A value for the page; `is_final` if later ones are equal to it, `has_more` if the next one can be read at once."""

    value: Mapping[str, Any]
    is_final: bool = False
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Reads a value of a page; `close` is called after the last reading."""

    read: Callable[[], Reading]
    interval_s: float
    close: Callable[[], None] = lambda: None


class Feed:
    """The newest value of a source, as JSON."""

    def __init__(self, source: Source, changed: threading.Condition) -> None:
        self._source, self._changed = source, changed
        self._ended = threading.Event()
        self._value: Mapping[str, Any] = {}
        self.text: str | None = None
        """None until the first reading."""
        self.is_final = False
        self.viewers = 0
        self.left_s = time.monotonic()
        """When the last viewer left."""
        threading.Thread(target=self._work, name="feed", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True if the feed has ended, and its value is not renewed any more."""
        return self._ended.is_set()

    def end(self) -> None:
        """Read no more; the thread may still wait for a node."""
        self._ended.set()

    def _work(self) -> None:
        try:
            while not self._is_left():
                begun_s = time.monotonic()
                reading = self._read() if self.viewers and not self.is_final else None
                if reading is not None:
                    self._publish(reading)
                if reading is None or not reading.has_more:
                    # without a supervisor, each look logs in to all nodes
                    self._ended.wait(max(self._source.interval_s, time.monotonic() - begun_s))
        finally:
            self._ended.set()
            self._source.close()

    def _is_left(self) -> bool:
        """True if the feed has ended; it ends KEPT_S after the last viewer has left."""
        with self._changed:  # so that nobody begins to view a feed that ends
            if not self.viewers and time.monotonic() - self.left_s > KEPT_S:
                self._ended.set()
            return self._ended.is_set()

    def _read(self) -> Reading:
        """Read the source; after an error, the last value with the problem."""
        try:
            return self._source.read()
        except Exception as exc:
            error = exc if isinstance(exc, OrchError) else machine_error(exc)
            if error is None:
                self._publish(Reading({**self._value, "problem": f"a bug in orch: {type(exc).__name__}: {exc}"}, True))  # noqa: FBT003
                raise
            return Reading({**self._value, "problem": f"{error}" + (f"; {error.hint}" if error.hint else "")})

    def _publish(self, reading: Reading) -> None:
        text = json.dumps(reading.value, ensure_ascii=False, allow_nan=False)
        with self._changed:
            self.is_final = reading.is_final
            self._value = reading.value
            if text != self.text or self.is_final:
                self.text = text
                self._changed.notify_all()


class Feeds:
    """The feeds that are viewed, by a key; viewers of one key share its feed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._feeds: dict[object, Feed] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @contextmanager
    def viewing(self, sources: Mapping[str, tuple[object, Callable[[], Source]]]) -> Iterator[Mapping[str, Feed]]:
        """View feeds: name -> (key, the function that makes the source if nobody views the key)."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self._viewing(key, make)) for name, (key, make) in sources.items()}

    @contextmanager
    def _viewing(self, key: object, make: Callable[[], Source]) -> Iterator[Feed]:
        with self.changed:
            feed = self._feeds.get(key)
            if feed is None or feed.is_over:
                self._feeds = {known: each for known, each in self._feeds.items() if not each.is_over}
                feed = self._feeds[key] = Feed(make(), self.changed)
            feed.viewers += 1
        try:
            yield feed
        finally:
            with self.changed:
                feed.viewers -= 1
                feed.left_s = time.monotonic()

    def close(self) -> None:
        with self.changed:
            self._is_closed = True
            for feed in self._feeds.values():
                feed.end()
            self.changed.notify_all()


def changes(feeds: Feeds, viewed: Mapping[str, Feed], quiet_s: float) -> Iterator[tuple[str, str] | None]:
    """
    The values of the feeds as (name, JSON), each once at first and then whenever it differs; ends once all are final.

    None after `quiet_s` without a change, so that the caller can find out whether the viewer is still there.
    """
    sent: dict[str, str] = {}

    def news() -> list[tuple[str, str]]:
        texts = ((name, feed.text) for name, feed in viewed.items())
        return [(name, text) for name, text in texts if text is not None and text != sent.get(name)]

    while True:
        with feeds.changed:
            feeds.changed.wait_for(lambda: bool(news()) or feeds.is_closed or _are_final(viewed), quiet_s)
            found, is_over = news(), feeds.is_closed or _are_final(viewed)
        sent.update(found)
        yield from found
        if not found and not is_over:
            yield None
        if is_over:
            return


def _are_final(viewed: Mapping[str, Feed]) -> bool:
    return all(feed.is_final for feed in viewed.values())
