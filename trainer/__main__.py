"""`python -m trainer`: argv -> configuration -> one training; prints nothing itself but the resolved configuration."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from typing import NoReturn, Sequence

from trainer.config.config import TrainConfig
from trainer.config.load import load_config, schemas_by_key
from trainer.errors import UserError, report
from trainer.memory.command import plan
from trainer.runtime.preemption import PreemptionSignal
from trainer.runtime.warm import VARIABLE, become_rank


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(
            f"{message}\nkeys are written key=value, for example steps=20; python -m trainer --help lists them"
        )


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {key:22} {schema.allowed}" for key, schema in schemas_by_key().items())
    parser = _Parser(
        prog="python -m trainer",
        description="Train a GPT on text, or a task of yours (task=package.module:Class, options.NAME=VALUE), one process per rank. "
        "The first word `plan`, with cards=N card_memory=GB: print the memory that a training needs on a card.",
        epilog=f"keys:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="JSON, or YAML where a YAML library is installed")
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration as JSON and stop")
    parser.add_argument("--list-keys", action="store_true", help="print all keys as JSON and stop")
    parser.add_argument("words", nargs="*", metavar="key=value", help="win over the file")
    return parser


def _train(config: TrainConfig) -> int:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"torch is not installed for {sys.executable}; install it, or name another Python for this node"
        )
    preemption = PreemptionSignal()  # before torch is imported
    # Imported here: --print-config and configuration errors must work without torch.
    from trainer.run_rank import run_rank

    return run_rank(config, os.environ, preemption)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; 2 for anything that the user can correct."""
    if VARIABLE in os.environ:
        become_rank(int(os.environ[VARIABLE]))
    try:
        request = _parser().parse_intermixed_args(argv)
        if request.words[:1] == ["plan"]:
            sys.stdout.write(plan(request.words[1:]))
            return 0
        if request.list_keys:
            defaults, found = load_config().as_dict(), []
            for key, schema in schemas_by_key().items():
                group, _, name = key.partition(".")
                default = defaults[group][name] if name else defaults[group]
                found.append({"key": key, "default": default, "values": schema.allowed})
            sys.stdout.write(json.dumps(found, indent=2) + "\n")
            return 0
        config = load_config(request.config, request.words)
        if request.print_config:
            sys.stdout.write(json.dumps(config.as_dict(), indent=2) + "\n")
            return 0
        return _train(config)
    except UserError as exc:
        return report(exc, os.environ)


if __name__ == "__main__":
    sys.exit(main())
