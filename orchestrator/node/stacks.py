"""The stacks of a hanging rank's threads, as Python's faulthandler writes them (trainer/runtime/watchdog.py)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Tuple

STACKS = "stacks"
LAST_BYTES = 1 << 16  # more than the hundred calls that faulthandler writes per thread
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


def path_of(folder: str, rank: int) -> str:
    return os.path.join(folder, STACKS, f"{rank}.txt")


def has_left_stacks(folder: str, rank: int) -> bool:
    """Return whether the rank hung until its end: progress empties the file."""
    try:
        return os.path.getsize(path_of(folder, rank)) > 0
    except OSError:
        return False


def innermost_calls(folder: str, ranks: Iterable[int]) -> Dict[int, str]:
    """Rank -> the innermost call of the main thread, for the ranks that have left stacks."""
    from orchestrator.node.files import tail  # noqa: PLC0415  an agent does not need it

    stacks = {rank: tail(path_of(folder, rank), LAST_BYTES) for rank in ranks}
    return {rank: innermost_call(text) for rank, text in stacks.items() if text}


def innermost_call(text: str) -> str:
    """
    The innermost call outside libraries, such as `trainer/runtime/group.py:139 in end`.

    The main thread's stack is the last one in the text: faulthandler writes the oldest thread last.
    """
    frames = text.rpartition("(most recent call first):\n")[2].splitlines()
    calls = [_parts(frame.strip()) for frame in frames if frame.startswith('  File "')]
    user_calls = [call for call in calls if not any(folder in call[0] for folder in LIBRARIES)]
    for path, line, function in (user_calls or calls)[:1]:
        return f"{'/'.join(path.split('/')[-2:])}:{line} in {function}"
    return "an unknown place"


def _parts(frame: str) -> Tuple[str, str, str]:
    """Path, line and function of `File "/a/b.py", line 3 in f`."""
    path, _, rest = frame[len('File "') :].rpartition('", line ')
    line, _, function = rest.partition(" in ")
    return path, line, function
