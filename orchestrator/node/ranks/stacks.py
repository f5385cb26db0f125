"""The stacks of a hanging rank's threads, as Python's faulthandler writes them (trainer/runtime/watchdog.py)."""

from __future__ import annotations

import os

from orchestrator.node.number_text import format_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

STACKS = "stacks"
MOST_CALLS = 6
LAST_BYTES = 1 << 16  # more than the hundred calls that faulthandler writes per thread
DATA_LOADER = "/torch/utils/data/"
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
    from orchestrator.node.system.files import tail  # an agent does not need it

    stacks = {rank: tail(path_of(folder, rank), LAST_BYTES) for rank in ranks}
    return {rank: innermost_call(text) for rank, text in stacks.items() if text}


def innermost_call(text: str) -> str:
    """
    The innermost call outside libraries, and the library's function that it waits in: `all_reduce, from my/train.py:81 in step`.

    The main thread's stack is the last one in the text: faulthandler writes the oldest thread last.
    """
    calls = _main_thread(text)
    user_calls = [call for call in calls if not any(folder in call[0] for folder in LIBRARIES)]
    for path, line, function in (user_calls or calls)[:1]:
        text = f"{'/'.join(path.split('/')[-2:])}:{line} in {function}"
        return text if not user_calls or calls[0] is user_calls[0] else f"{calls[0][2]}, from {text}"
    return "an unknown place"


def calls_data_loader(text: str) -> bool:
    """True if the main thread is in torch's data loader."""
    return any(DATA_LOADER in path for path, _, _ in _main_thread(text))


def folded_calls(calls: Mapping[int, str]) -> str:
    """The calls of the ranks, the rarest first: `rank 7 at my/data.py:12 in read; ranks 0-6 at all_reduce, from …`."""
    ranks_at: Dict[str, List[int]] = {}
    for rank, call in calls.items():
        ranks_at.setdefault(call, []).append(rank)
    rarest_first = sorted(ranks_at.items(), key=lambda item: (len(item[1]), item[1]))
    texts = [f"{ranks_text(ranks)} at {call}" for call, ranks in rarest_first[:MOST_CALLS]]
    more = len(rarest_first) - MOST_CALLS
    return "; ".join(texts + ([f"{more} other calls"] if more > 0 else []))


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_numbers(ranks)}"


def _main_thread(text: str) -> Sequence[Tuple[str, str, str]]:
    frames = text.rpartition("(most recent call first):\n")[2].splitlines()
    return [_parts(frame.strip()) for frame in frames if frame.startswith('  File "')]


def _parts(frame: str) -> Tuple[str, str, str]:
    """Path, line and function of `File "/a/b.py", line 3 in f`."""
    path, _, rest = frame[len('File "') :].rpartition('", line ')
    line, _, function = rest.partition(" in ")
    return path, line, function
