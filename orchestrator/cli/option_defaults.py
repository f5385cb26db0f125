"""The options of a command that the user's config.yaml sets, for command lines that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from orchestrator.usecases.config_file import INVENTORY, ConfigFile, config_file


def set_option_defaults(ctx: click.Context, verbs: Sequence[str], verb: str, command: click.Command) -> None:
    """Let the context of a command have the defaults of the file; `ctx` is that of orch."""
    config = config_file()
    if config is None:
        return
    allowed = [INVENTORY, *verbs]
    for key in config.keys:
        if key not in allowed:
            raise config.unknown([key], allowed)
    if verb != INVENTORY:  # of that name, the file has the path
        ctx.default_map = {verb: _section(ctx, command, config, [verb])}


def _section(ctx: click.Context, command: click.Command, config: ConfigFile, keys: Sequence[str]) -> dict[str, Any]:
    """Parameter -> value, as click takes them, or subcommand -> its parameters."""
    section = config.value(*keys)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise config.error(keys, "must be a mapping of options, as in {follow: false}")
    if isinstance(command, click.Group):
        if unknown := [key for key in section if key not in command.commands]:
            raise config.unknown([*keys, unknown[0]], list(command.commands))
        return {key: _section(ctx, command.commands[key], config, [*keys, key]) for key in section}
    options = {name: option for option in command.params if isinstance(option, click.Option) for name in _names(option)}
    values = {}
    for key, value in section.items():
        if key not in options:
            raise config.unknown([*keys, key], list(options))
        option = options[key]
        try:
            option.type_cast_value(ctx, value)
        except (click.UsageError, TypeError) as error:
            text = error.message if isinstance(error, click.UsageError) else "must be one value"
            raise config.error([*keys, key], text.rstrip(".")) from error
        values[str(option.name)] = value
    return values


def _names(option: click.Option) -> list[str]:
    """The long names without dashes; none of an option that only shows something."""
    return [] if option.is_eager else [name[2:] for name in option.opts if name.startswith("--")]
