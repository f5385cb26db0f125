"""
Import Fabric without `unittest.mock`, which its dependency invoke imports for a class for tests.

With asyncio, which it imports in turn, it would take a tenth of the time in which a command over SSH imports its modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

NAME = "unittest.mock"


class _Deferred(ModuleType):
    """Stands for the module: what is used of it comes from the module itself, which is imported then."""

    @staticmethod
    def Mock(*args: object, **options: object) -> object:  # noqa: N802  a class of the module
        mock: object = import_module(NAME).Mock(*args, **options)
        return mock

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # an import looks for __path__
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        value: object = getattr(import_module(NAME), name)
        return value


@contextmanager
def deferred_mock() -> Iterator[None]:
    """In the block, imports of the module that only take `Mock` from it do not run it."""
    if NAME in sys.modules:
        yield
        return
    deferred = sys.modules[NAME] = _Deferred(NAME)
    try:
        yield
    finally:
        if sys.modules.get(NAME) is deferred:
            del sys.modules[NAME]
