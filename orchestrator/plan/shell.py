"""Text for a shell: quoting, and the Jinja environment of templates/."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.resources import template_folder

if TYPE_CHECKING:
    from jinja2 import Environment


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@cache
def jinja_environment() -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sh"] = quoted
    environment.filters["path"] = shell_path
    return environment


def render(template: str, **values: object) -> str:
    return jinja_environment().get_template(template).render(**values)


def quoted(value: str) -> str:
    """The value as one shell word, always in quotes: `X==a` is a value of NCCL_IB_HCA and a puzzle for a reader."""
    return "'" + value.replace("'", "'\"'\"'") + "'"


def shell_path(path: str) -> str:
    """The path as one shell word; a leading "~/" becomes the home of whoever runs the script."""
    refuse_control(path, "path")
    if path.startswith("~/"):
        return '"$HOME"/' + shlex.quote(path[2:])
    return shlex.quote(path)


def refuse_control(text: str, what: str) -> None:
    found = _CONTROL.search(text)
    if found:
        raise UsageError(
            f"{what} {text!r} holds the control character {found.group()!r}",
            hint="remove it; only environment values may hold newlines",
        )
