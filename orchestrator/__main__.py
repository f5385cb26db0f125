"""The program `orch`, also as `python -m orchestrator`."""

from __future__ import annotations

import sys

from orchestrator.usecases.owner.start import early_owner


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    with early_owner(sys.argv[1:]):
        from orchestrator.cli import app  # while the owner of a run imports its modules

        return app.main()


if __name__ == "__main__":
    sys.exit(main())
