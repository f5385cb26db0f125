"""The Python of a T20's software: 3.8 with torch 1.10 and mmengine 0.10.4, from `make .venv-t20/.ready` or $ORCH_TORCH_1_10."""

from __future__ import annotations

import os

import pytest

from tests.paths import ROOT


def t20_python() -> str:
    """Its interpreter; skips the test if there is none, which holds where no Python 3.8 is installed (scripts/make-t20-venv.sh)."""
    python = os.environ.get("ORCH_TORCH_1_10") or str(ROOT / ".venv-t20" / "bin" / "python")
    if not os.access(python, os.X_OK):
        pytest.skip("no Python 3.8 with torch 1.10: make .venv-t20/.ready, or name one with ORCH_TORCH_1_10")
    return python
