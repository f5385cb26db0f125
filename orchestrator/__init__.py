"""orch starts a training job on many machines from one inventory file. From Python: see api/."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from orchestrator.version import __version__

if TYPE_CHECKING:
    from orchestrator.api import Rows, Run, Runs, compare, runs, ssh_launch, submit

__all__ = ["Rows", "Run", "Runs", "__version__", "compare", "runs", "ssh_launch", "submit"]


def __getattr__(name: str) -> object:  # functions and classes
    """Import api/ at the first use of a name in __all__: every command imports this package, and none needs api/."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("orchestrator.api"), name)


def __dir__() -> list[str]:
    return __all__
