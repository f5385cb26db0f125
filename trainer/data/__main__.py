"""`python -m trainer.data`: token files for the trainer, made of text. No torch here."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, Sequence

from trainer.data.corpus.command import tokenize
from trainer.errors import UserError

INTERRUPTED = 130  # exit code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; python -m trainer.data tokenize --help explains more")


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m trainer.data", description="Data of the trainer.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="tokenize")
    text = "write the tokens of text files, JSON Lines, lists in JSON or Parquet to a new folder, which data.paths then names"
    command = commands.add_parser("tokenize", help=text, description=text, allow_abbrev=False)
    command.add_argument("texts", metavar="TEXT", nargs="+", help="files, folders or globs")
    command.add_argument("--tokenizer", metavar="PATH", type=Path, required=True, help="tokenizer.json or its folder")
    command.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="appears when it is whole")
    command.add_argument("--field", metavar="NAME", default="text", help="the text of a record (default: text)")
    command.add_argument(
        "--processes",
        metavar="N",
        type=_number,
        default=len(os.sched_getaffinity(0)),
        help="default: one for each core",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    try:
        request = _parser().parse_args(argv)
        paths = request.output.expanduser(), request.tokenizer.expanduser()
        tokenize(request.texts, *paths, field=request.field, processes=request.processes)
    except UserError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return exc.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command continues\n")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
