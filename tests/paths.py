"""Where the tests find the repository and their tables of cases."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
