"""
Import Fabric without modules of which its dependency invoke uses nothing here: `unittest.mock`, for a class for tests, and YAML, for configuration files.

With asyncio, which the former imports in turn, they would take a seventh of the time in which a command over SSH imports its modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

MOCK, YAML = "unittest.mock", "invoke.vendor.yaml"


class _Deferred(ModuleType):
    """Stands for a module: what is used of it comes from the module itself, which is imported then."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # an import looks for __path__
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        value: object = getattr(import_module(self.__name__), name)
        return value


class _DeferredMock(_Deferred):
    @staticmethod
    def Mock(*args: object, **options: object) -> object:  # noqa: N802  a class of the module, which invoke takes at its import
        mock: object = import_module(MOCK).Mock(*args, **options)
        return mock


@contextmanager
def deferred_imports() -> Iterator[None]:
    """In the block, imports of these modules that use nothing of them, or only take `Mock`, do not run them."""
    deferred = {module.__name__: module for module in (_DeferredMock(MOCK), _Deferred(YAML))}
    absent = {name: module for name, module in deferred.items() if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name, module in absent.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
