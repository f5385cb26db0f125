"""orch starts a training job on many machines from one inventory file. From Python: `submit` and `ssh_launch`, see api.py."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from orchestrator.version import __version__

if TYPE_CHECKING:
    from orchestrator.api import Run, ssh_launch, submit

__all__ = ["Run", "__version__", "ssh_launch", "submit"]


def __getattr__(name: str) -> object:  # functions and a class
    """Import api.py at the first use of a name in __all__: every command imports this package, and few need api.py."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("orchestrator.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
