"""
`python -m bench.failures [NAME …]`: provoke failures in real runs on this machine, and compare their diagnoses with the causes.

Most are one launch of two nodes with one rank each. The table has the cause that was found, the rank, the confidence, and if they are
right; then the result of the remedy, where it names a step that can be followed here: the state of the next run, or what
`orch diagnose --prove` has shown.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.failures.collectives import COLLECTIVES
from bench.failures.files import FILES
from bench.failures.frameworks import FRAMEWORKS
from bench.failures.outside import OUTSIDE
from bench.failures.processes import PROCESSES
from bench.failures.training import TRAINING
from bench.processes import CommandFailed

FAILURES = (*PROCESSES, *FILES, *COLLECTIVES, *TRAINING, *FRAMEWORKS, *OUTSIDE)
HEADER = """\
| failure | found | class | began on | confidence | right | after the remedy | seconds |
|---|---|---|---|---|---|---|---|
"""
WORKED = ("DONE", "proved")


def main() -> int:
    """Provoke the failures and print the table; 1 if a diagnosis is confident and wrong."""
    names = sys.argv[1:]
    chosen = [failure for failure in FAILURES if not names or failure.name in names]
    wrong = right = provoked = 0
    remedies: list[str] = []
    sys.stdout.write(HEADER)
    for failure in chosen:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="orch-failures-") as folder:
            try:
                found, result = failure.outcome(Path(folder))
            except (CommandFailed, OSError) as error:
                sys.stdout.write(f"| {failure.name} | cannot be provoked here: {error} | | | | | | |\n")
                continue
        provoked += 1
        is_right = failure.is_right(found)
        right += is_right
        wrong += not is_right and found["confidence"] == "high"
        remedies += [result] if result else []
        cells = (failure.name, found["signature"], found["kind"], found["ranks"], found["confidence"])
        word = "yes" if is_right else "no"
        seconds = time.monotonic() - begun
        sys.stdout.write(f"| {' | '.join(map(str, cells))} | {word} | {result} | {seconds:.0f} |\n")
        sys.stdout.flush()
    kinds = len({failure.signatures[0] for failure in chosen})
    worked = sum(result in WORKED for result in remedies)
    sys.stdout.write(
        f"\n{right} of {provoked} right, of {kinds} signatures; {wrong} wrong with high confidence; "
        f"{worked} of {len(remedies)} remedies that were followed worked\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
