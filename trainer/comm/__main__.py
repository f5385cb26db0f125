"""`python -m trainer.comm`: argv -> settings -> one rank of a benchmark."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from typing import NoReturn, Sequence

from trainer.comm.config import load_config
from trainer.errors import UserError, report


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\nsettings are written key=value, for example op=all-reduce")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; 2 for anything that the user can correct."""
    parser = _Parser(prog="python -m trainer.comm", description="Measure collectives and point to point.")
    parser.add_argument("--print-config", action="store_true", help="print the settings as JSON and stop")
    parser.add_argument("words", nargs="*", metavar="key=value")
    try:
        request = parser.parse_intermixed_args(argv)
        config = load_config(request.words)
        if request.print_config:
            sys.stdout.write(json.dumps(config.as_dict(), indent=2) + "\n")
            return 0
        if importlib.util.find_spec("torch") is None:
            raise UserError(
                f"torch is not installed for {sys.executable}; install it, or name another Python for this node"
            )
        from trainer.comm.run import run_rank  # errors in the settings must be found without torch

        run_rank(config, os.environ)
    except UserError as exc:
        return report(exc, os.environ)


if __name__ == "__main__":
    sys.exit(main())
