"""What a rank leaves that stands still: the stacks of its threads, in the words of Python's faulthandler (trainer/runtime/watchdog.py)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Tuple

STACKS = "stacks"
LAST_BYTES = 1 << 16  # more than the hundred calls that are written of a thread
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


def path_of(folder: str, rank: int) -> str:
    return os.path.join(folder, STACKS, f"{rank}.txt")


def has_left_stacks(folder: str, rank: int) -> bool:
    """Whether it has stood still to its end: after progress, the file is empty again."""
    try:
        return os.path.getsize(path_of(folder, rank)) > 0
    except OSError:
        return False


def places(folder: str, ranks: Iterable[int]) -> Dict[int, str]:
    """Rank -> the innermost call of its main thread, for those that have left stacks."""
    from orchestrator.node.files import tail  # noqa: PLC0415  of no use to an agent

    found = {rank: tail(path_of(folder, rank), LAST_BYTES) for rank in ranks}
    return {rank: innermost(text) for rank, text in found.items() if text}


def innermost(text: str) -> str:
    """Such as `trainer/runtime/group.py:139 in end`, of code that is no library; the main thread is the oldest, so the last."""
    frames = text.rpartition("(most recent call first):\n")[2].splitlines()
    calls = [_parts(frame.strip()) for frame in frames if frame.startswith('  File "')]
    own = [call for call in calls if not any(folder in call[0] for folder in LIBRARIES)]
    for path, line, function in (own or calls)[:1]:
        return f"{'/'.join(path.split('/')[-2:])}:{line} in {function}"
    return "an unknown place"


def _parts(frame: str) -> Tuple[str, str, str]:
    """Of `File "/a/b.py", line 3 in f`."""
    path, _, rest = frame[len('File "') :].rpartition('", line ')
    line, _, function = rest.partition(" in ")
    return path, line, function
