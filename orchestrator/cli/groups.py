"""A group of commands in the order of the source, which refuses an unknown command with a next step."""

from __future__ import annotations

import click

from orchestrator.errors import UsageError


class Group(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.list_commands(ctx) or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise UsageError(f"{ctx.command_path} has no command {name!r}", hint=self.hint(ctx, name))

    def hint(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002  LazyGroup uses the name
        """The next step after an unknown command."""
        return f"{ctx.command_path} --help lists the commands"
