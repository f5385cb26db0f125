"""The program of the process that owns a run (usecases/owner/owner.py): until the run has started, it looks for garbage rarely."""

from __future__ import annotations

import sys

from orchestrator.gc_tuning import infrequent_gc


def main() -> int:
    """Own a run; argv[1] is the number of the descriptor of the link to the viewer."""
    with infrequent_gc():
        from orchestrator.usecases.owner.owner import own_run  # within the block

        return own_run(int(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
