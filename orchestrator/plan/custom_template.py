"""Render a batch script from a user's template; refuse a script whose job orch could not follow."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.inventory.slurm import check_option
from orchestrator.resources import template_folder

if TYPE_CHECKING:
    from jinja2 import Environment

_HINT = "orch's own is templates/slurm.sbatch.j2, shown as rendered by --dry-run; start from a copy of it"


def render_custom(file: Path, environment: Environment, values: Mapping[str, Any]) -> str:
    """
    Render a template in the Jinja environment of templates/; it may include those and the files beside it.

    Raises:
        UsageError: the template cannot be rendered, or orch could not follow its job; names the file and, if known, the line.
    """
    from jinja2 import FileSystemLoader, TemplateError  # only if there is a template

    custom = environment.overlay(loader=FileSystemLoader([file.parent, template_folder()]))
    try:
        text = custom.get_template(file.name).render(values)
    # errors while a template runs: 1 / 0, options[99], run_id + 1, a call without arguments, a loop of includes
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"{_location(exc, file)}: {str(exc) or type(exc).__name__}", hint=_HINT) from exc
    if problems := list(_problems(text, values)):
        raise UsageError("\n".join(f"{file}: {problem}" for problem in problems), hint=_HINT)
    return text


def _location(exc: Exception, file: Path) -> str:
    """The file and line of the template that raised it: jinja2 puts them into the traceback."""
    from jinja2 import TemplateSyntaxError

    if isinstance(exc, TemplateSyntaxError):
        return f"{exc.filename}:{exc.lineno}"
    frames = traceback.extract_tb(exc.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if Path(frame.filename).parent == file.parent]
    return lines[-1] if lines else str(file)


def _problems(text: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield each reason why orch could not follow the job of a rendered script."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        yield "does not begin with #!/bin/bash, which sbatch requires"
    header_end = next(
        (number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines)
    )
    directives = [found[1].strip() for line in lines[:header_end] if (found := re.match(r"#SBATCH\s+(.*)", line))]
    if dropped := [option for option in values["options"] if option not in directives]:
        yield f"leaves out `#SBATCH {dropped[0]}`: all of `options` go before the first command, where sbatch reads them"
    for option in directives:
        if option not in values["options"]:
            try:
                check_option(re.sub(r"^(--[a-z-]+)\s+", r"\1=", option))
            except ValueError as error:
                yield f"`#SBATCH {option}`: {error}"
    commands = [line for line in lines[header_end:] if not line.lstrip().startswith("#")]
    if not any(re.search(r"\bsrun\b", line) for line in commands):
        yield "has no srun, which starts the agents"
    elif not any(re.search(r"\bnode\.sh\S* run\b", line) for line in commands):
        yield 'starts no agent: srun has to run `/bin/sh "$folder/node.sh" run`, which starts the ranks and records how they end'
    if values["spare_count"] and not any(re.search(r"\bnode\.sh\S* nodes\b", line) for line in commands):
        yield "does not run `node.sh nodes`, which chooses the nodes to run on: slurm.spare_nodes needs it"
    if dropped := [option for option in values["srun_options"] if option not in text]:
        yield f"leaves out {dropped[0]}: all of `srun_options` go to srun"
