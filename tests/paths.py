"""The repository's root and the folder of the tests' tables of cases."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
