"""Names of variables that nothing reads, and the names that were probably meant."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.portable.findings import Severity
from orchestrator.variables import UNDOCUMENTED, VARIABLES, Row
from orchestrator.variables.row import REMOVE

# Prefixes whose variables are all in the table, with the latest code that was read.
_COMPLETE = {
    "NCCL_": "NCCL to 2.32",
    "TORCH_NCCL_": "torch to 2.15",
    "TORCH_ECCL_": "torch_gcu to 2.10",
    "ECCL_": "Enflame's published code",
    "GCU_": "Enflame's published code",
    "DTU_": "Enflame's published code",
}
_CLOSE, _CLOSE_ELSEWHERE = 0.85, 0.9  # similarity of a misspelt name, as difflib measures it
_LONGEST_NAME = 60  # characters
_OTHER_LIBRARY = re.compile("(?!NCCL|ECCL)[A-Z]CCL_|PYTORCH_(?:NPU|HIP|XPU|MUSA|MLU)_")
"""Beginnings of names for other vendors' cards: HCCL, RCCL, MCCL, PYTORCH_NPU_ALLOC_CONF."""
_OF_OTHERS = frozenset(
    "NCCL_IBEXT_DISABLE NCCL_SHARP_DISABLE NCCL_VERSION NCCL_HOME NCCL_EP_HOME NCCL_ROOT NCCL_INCLUDE_DIR NCCL_LIB_DIR "
    "NCCL_TUNER_CONFIG_FILE NCCL_PROFILER_CE_POLLER_INTERVAL_MICROSECONDS NCCL_PROFILER_CE_TIMING".split()
)
"""Read by NVIDIA's plugins or by builds, and the version that NVIDIA's images state."""
_OF_PLUGINS = ("NCCL_INSPECTOR_", "NCCL_PROFILE_", "NCCL_OFI_", "NCCL_TESTS_", "NCCL_FASTRAK_", "NCCL_GPUVIZ_")
"""Beginnings of names that profilers and network plugins of NVIDIA, AWS and Google read."""


def _is_current(row: Row) -> bool:
    """False for a variable that nobody should set."""
    is_useless = any(verdict.better == REMOVE and not (verdict.when or verdict.value) for verdict in row.verdicts)
    return row.library not in ("nothing", "launchers") and not row.until and (row.library != "NCCL" or not is_useless)


_NAMES = [*(row.name for row in VARIABLES.values() if _is_current(row)), *sorted(UNDOCUMENTED)]


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that is not in the table: the text of a finding, and the name that was meant, which may replace it if `is_certain`."""

    severity: Severity
    text: str
    meant: str | None = None
    is_certain: bool = False


@lru_cache(maxsize=1000)
def unknown_name(name: str, *, is_exported: bool = True) -> UnknownName | None:
    """Judge a name that is not in the table; None for a name of no concern, as for most variables that a script keeps for itself."""
    is_known = name in UNDOCUMENTED or name in _OF_OTHERS or name.startswith(_OF_PLUGINS)
    if is_known or (not is_exported and not name.isupper()):
        return None
    known = VARIABLES.get(name.upper())
    if known is not None and known.library == "launchers":
        return None  # `rank` and `world_size` are names of everybody's own variables
    if known is not None:
        text = "names of variables are case-sensitive, so nothing reads it"
        return UnknownName(Severity.WARN, text, name.upper(), is_certain=True)
    prefix = next((prefix for prefix in sorted(_COMPLETE, key=len, reverse=True) if name.startswith(prefix)), None)
    meant = _nearest(name, is_complete=prefix is not None and is_exported)
    if meant is not None:
        likeness = difflib.SequenceMatcher(a=meant, b=name).ratio()
        is_certain = meant in VARIABLES and likeness >= _CLOSE_ELSEWHERE and abs(len(name) - len(meant)) <= 1
        return UnknownName(Severity.WARN, f"nothing reads it: did you mean {meant}?", meant, is_certain)
    if prefix is None or not is_exported:
        return None
    return UnknownName(Severity.INFO, f"{_COMPLETE[prefix]} does not read it; a plugin may")


def _nearest(name: str, *, is_complete: bool) -> str | None:
    """The most similar known name; outside complete prefixes, only one of the same first letter and not of Enflame's cards."""
    if len(name) > _LONGEST_NAME or _OTHER_LIBRARY.match(name):
        return None
    known = _NAMES if is_complete else [row for row in _NAMES if row[0] == name[:1] and "GCU" not in row]
    library = next((library for library in ("ECCL", "NCCL") if library in name), "")
    known = [row for row in known if library in row]  # one library's variable is no misspelt one of the other
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE if is_complete else _CLOSE_ELSEWHERE)
    return close[0] if close else None
