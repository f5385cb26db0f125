"""Quoting for a shell, and the Jinja environment of templates/."""

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
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sh"] = shell_quote
    environment.filters["path"] = shell_path
    return environment


def render(template: str, **values: object) -> str:
    return jinja_environment().get_template(template).render(**values)


def shell_quote(value: str) -> str:
    """The value as one shell word, always in quotes: without them, a value such as `=mlx5_0` of NCCL_IB_HCA is hard to read."""
    return "'" + value.replace("'", "'\"'\"'") + "'"


def shell_path(path: str) -> str:
    """The path as one shell word: for "~/" the home folder of the user who runs the script, for a folder "$USER" that user's name."""
    refuse_control(path, "path")
    if path == "~":
        return '"$HOME"'
    first, *later = re.split(r"(?<=/)\$USER(?=/|$)", path)
    home, first = ('"$HOME"/', first[2:]) if first.startswith("~/") else ("", first)
    words = [shlex.quote(part) if part else "" for part in (first, *later)]
    return home + '"$(id -un)"'.join(words) or "''"


def refuse_control(text: str, noun: str) -> None:
    """Raise a UsageError if the text, which the message calls `noun`, holds a control character."""
    found = _CONTROL.search(text)
    if found:
        raise UsageError(
            f"{noun} {text!r} holds the control character {found.group()!r}",
            hint="remove it; only environment values may hold newlines",
        )
