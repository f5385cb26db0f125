"""
Run a command that submits a job, and print lines that its files get: for those who have nothing that follows a job.

    python3 submit_and_tail.py LINES TEXT PATTERN COMMAND…       until so many lines with the text have come
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.005


def tail(pattern: str, text: str, lines: int) -> None:
    """Print what is in the files; whoever runs this has a limit of time."""
    folder, printed = Path(pattern).parent, 0
    while printed < lines:
        time.sleep(POLL_S)
        files = sorted(folder.glob(Path(pattern).name))
        found = [line for file in files for line in file.read_text("utf-8").splitlines() if text in line]
        for line in found[printed:]:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        printed = len(found)


if __name__ == "__main__":
    # torchx ends with an error where Slurm has no accounting, after it has submitted the job
    subprocess.run(sys.argv[4:], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    tail(sys.argv[3], sys.argv[2], int(sys.argv[1]))
