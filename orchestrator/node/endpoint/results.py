"""The results in a run's folder: all files but those that orch wrote, those that were sent and have not changed, and caches."""

from __future__ import annotations

import os
import re
import stat

from orchestrator.node.run.run_folder import ATTEMPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Set, Tuple

# The names of the files that orch writes, by folder. A file that is missing here counts as a result, so its run is never removed: see test_results.py.
OWN_IN_RUN = re.compile(r"(config|comm)\.json|facts|heartbeat|code\.new-.+|\.claimed")
OWN_IN_RECORD = re.compile(  # the same folder if the workdir is $ORCH_HOME
    r"(run|findings|software|stats|observed)\.json|run\.lock|supervisor\.(lock|log)|reporter\.lock|hooks\.log|stop-asked|events\.jsonl|plan|queries"
)
RECORD = "run.json"
OWN_IN_ATTEMPT = re.compile(
    r"(job|check|submission|standby)\.json|(setup|node|step|variables)\.sh|submit\.sbatch|slurm-.+\.log|head-done"
    r"|submission_file_\w+\.sh|[0-9_]+_submission\.sh"  # of submitit
)
OWN_IN_NODE = re.compile(
    r"(agent|cards|network|hang|standby)\.json|agent\.log|(events|offsets)\.jsonl|(rank-\d+|program)\.(out|err)|node\.sh|DONE"
    r"|supervised|peer-answered|fence|save-request|hostfile|port-taken|memory-kept|progress|stacks|error|channel"
)
UNFINISHED = re.compile(r"(.+)\.tmp|\.(.+)\.[a-z0-9_]{8}")  # a file of orch that a crash has left half written
CODE = "code"
CACHES = frozenset(("__pycache__", ".triton", "torch_extensions", ".nv"))
CACHE_TAG = "CACHEDIR.TAG"  # bford.info/cachedir; pytest, mypy, ruff and huggingface_hub write it
CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
MOST_NAMED = 5


class Results:
    """The results found in a run's folder, or in the folder of the record; `bundles` are those whose code was sent for the run."""

    def __init__(self, folder: str, bundles: Sequence[str]) -> None:
        self.bytes = 0
        self._has_record = os.path.lexists(os.path.join(folder, RECORD))
        self._bundles = bundles
        self._caches: Set[Tuple[str, ...]] = set()
        self._size_of: Dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._size_of)

    @property
    def names(self) -> List[str]:
        """Files and folders with results, relative to the run's folder: the largest ones, and the number of the others."""
        names = sorted(self._size_of, key=lambda name: (-self._size_of[name], name))
        more = len(names) - MOST_NAMED
        return [*names[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]

    def enter(self, parts: Sequence[str], path: str, names: Sequence[str]) -> None:
        """Note whether a folder, whose parent was entered before, is a cache."""
        is_cache = bool(parts) and (parts[-1] in CACHES or parts[-1].startswith("torchinductor_"))
        if is_cache or tuple(parts[:-1]) in self._caches or (CACHE_TAG in names and is_tagged(path)):
            self._caches.add(tuple(parts))

    def add(self, parts: Sequence[str], state: os.stat_result) -> None:
        """Count a file if it is a result. A link is none: its target is counted itself, or is not removed with the run."""
        is_known = not stat.S_ISREG(state.st_mode) or tuple(parts[:-1]) in self._caches or self._is_own(parts)
        if is_known or any(was_sent(state, parts, bundle) for bundle in self._bundles):
            return
        name = shown_name(parts)
        self.bytes += state.st_size
        self._size_of[name] = self._size_of.get(name, 0) + state.st_size

    def _is_own(self, parts: Sequence[str]) -> bool:
        if parts[0].startswith(ATTEMPT):
            _, name, *below = parts
            return is_name(OWN_IN_ATTEMPT, name) or (bool(below) and is_name(OWN_IN_NODE, below[0]))
        return is_name(OWN_IN_RUN, parts[0]) or (self._has_record and is_name(OWN_IN_RECORD, parts[0]))


def is_name(pattern: re.Pattern[str], name: str) -> bool:
    """True also if the name is that of an unfinished file."""
    unfinished = UNFINISHED.fullmatch(name)
    return bool(pattern.fullmatch(name) or (unfinished and pattern.fullmatch(unfinished[1] or unfinished[2])))


def is_tagged(folder: str) -> bool:
    try:
        with open(os.path.join(folder, CACHE_TAG), "rb") as file:
            return file.read(len(CACHE_SIGNATURE)) == CACHE_SIGNATURE
    except OSError:
        return False


def code_parts(parts: Sequence[str]) -> Sequence[str]:
    """The path below the code folder: `code`, or `attempt-1/NODE/code` of an older version; empty if it is elsewhere."""
    first = 3 if parts[0].startswith(ATTEMPT) else 1
    return parts[first:] if list(parts[first - 1 : first]) == [CODE] else ()


def was_sent(state: os.stat_result, parts: Sequence[str], bundle: str) -> bool:
    """True for an unchanged copy of a file of the bundle."""
    within = code_parts(parts)
    if not within:
        return False
    try:
        original = os.lstat(os.path.join(bundle, CODE, *within))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (state.st_size, state.st_mtime_ns) == (original.st_size, original.st_mtime_ns)  # copies keep the time


def shown_name(parts: Sequence[str]) -> str:
    """The file or folder directly in the run's folder, its code, or the folder of a node, that holds this file."""
    depth = len(parts) - len(code_parts(parts)) + 1 if code_parts(parts) else 3 if parts[0].startswith(ATTEMPT) else 1
    return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")
