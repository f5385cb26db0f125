"""
Run a command that submits a job and print the lines of the job's output files, for submitters that cannot follow a job.

    python3 submit_and_tail.py LINES TEXT PATTERN COMMAND…       until LINES lines contain TEXT
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.005


def tail(pattern: str, text: str, lines: int) -> None:
    """Print the matching lines of the files as they arrive. The caller sets the time limit."""
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
    # without accounting in Slurm, torchx fails after it has submitted the job
    subprocess.run(sys.argv[4:], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    tail(sys.argv[3], sys.argv[2], int(sys.argv[1]))
