"""Names of variables that nothing reads, and the names that were probably meant."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.environment.table import UNDOCUMENTED, VARIABLES
from orchestrator.findings import Severity

# Prefixes whose variables are all in the table, with the latest code that was read.
_COMPLETE = {
    "NCCL_": "NCCL to 2.30",
    "TORCH_NCCL_": "torch to 2.13",
    "TORCH_ECCL_": "torch_gcu to 2.10",
    "ECCL_": "Enflame's published code",
    "GCU_": "Enflame's published code",
    "DTU_": "Enflame's published code",
}
_CLOSE, _CLOSE_ELSEWHERE = 0.85, 0.9  # similarity of a misspelt name, as difflib measures it
_LONGEST_NAME = 60  # characters
_OTHER_LIBRARY = re.compile("(?!NCCL|ECCL)[A-Z]CCL_")  # collective libraries of other vendors: HCCL, RCCL, MCCL
_NAMES = [
    *(row.name for row in VARIABLES.values() if row.library not in ("nothing", "launchers")),
    *sorted(UNDOCUMENTED),
]


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that is not in the table: the text of a finding, and the name that was meant, which may replace it if `is_certain`."""

    severity: Severity
    text: str
    meant: str | None = None
    is_certain: bool = False


@lru_cache(maxsize=1000)
def unknown_name(name: str) -> UnknownName | None:
    """Judge a name that is not in the table; None for a name of no concern."""
    if name in UNDOCUMENTED:
        return None
    if name.upper() in VARIABLES:
        text = "names of variables are case-sensitive, so nothing reads it"
        return UnknownName(Severity.WARN, text, name.upper(), is_certain=True)
    prefix = next((prefix for prefix in sorted(_COMPLETE, key=len, reverse=True) if name.startswith(prefix)), None)
    meant = _nearest(name, is_complete=prefix is not None)
    if meant is not None:
        return UnknownName(Severity.WARN, f"nothing reads it: did you mean {meant}?", meant, _is_certain(name, meant))
    if prefix is None:
        return None
    return UnknownName(Severity.INFO, f"{_COMPLETE[prefix]} does not read it; a plugin may")


def _nearest(name: str, *, is_complete: bool) -> str | None:
    """The most similar known name; outside complete prefixes, only one of the same first letter and not of Enflame's cards."""
    if len(name) > _LONGEST_NAME or _OTHER_LIBRARY.match(name):
        return None
    known = _NAMES if is_complete else [row for row in _NAMES if row[0] == name[:1] and "GCU" not in row]
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE if is_complete else _CLOSE_ELSEWHERE)
    return close[0] if close else None


def _is_certain(name: str, meant: str) -> bool:
    likeness = difflib.SequenceMatcher(a=meant, b=name).ratio()
    return meant in VARIABLES and likeness >= _CLOSE_ELSEWHERE and abs(len(name) - len(meant)) <= 1
