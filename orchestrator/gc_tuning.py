"""Look for garbage rarely, in a process of orch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from gc import freeze, get_threshold, set_threshold

_USUAL = get_threshold()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """
    Look for garbage rarely in the block, which is all that the process does: set it before the modules are imported.

    They are some 100,000 objects that are never garbage: looking through them during the imports and at the exit took a tenth of the
    processor time of a command, and more of the start of the process that owns a run.
    """
    set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        freeze()


def default_gc() -> None:
    """Look for garbage as often as usual again, for a process that lives long, but never among the objects that it has by now."""
    freeze()
    set_threshold(*_USUAL)
