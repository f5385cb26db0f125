"""`orch settings`: the settings of the shared trainer."""

from __future__ import annotations

import json

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import print_json, print_table
from orchestrator.usecases.launch.settings import trainer_settings


@click.command()
@click.argument("word", required=False, shell_complete=completion.found("settings"))
@options.as_json
def settings(word: str | None, *, as_json: bool) -> int:
    """List the settings of the shared trainer, those with WORD in their name: orch settings lr."""
    found = trainer_settings(word)
    if as_json:
        print_json(found)
    else:
        rows = [(setting["key"], _text(setting["default"]), setting["values"]) for setting in found]
        print_table(("KEY", "DEFAULT", "VALUES"), rows, cut=("VALUES",))
    return 0


def _text(default: object) -> str:
    """The default as it is typed in KEY=VALUE."""
    return "-" if default is None else default if isinstance(default, str) else json.dumps(default)
