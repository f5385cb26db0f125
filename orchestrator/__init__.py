"""orch starts a training job on many machines from one inventory file. From Python: `submit` and `ssh_launch`, see api.py."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # what typing.TYPE_CHECKING is: this file travels, and importing typing costs every agent some milliseconds
)
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401  functions and a class
    """What api.py has, imported when somebody asks for it."""
    if name not in ("submit", "ssh_launch", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module("orchestrator.api"), name)
