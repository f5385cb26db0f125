"""
The batch script out of a template of the user's: rendered like orch's own, and refused where orch could not follow its job.
"""

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
    Render a template in the environment of orch's own; it may include files beside it, and orch's templates.

    Raises:
        UsageError: naming the file, and the line where one is to blame.
    """
    from jinja2 import FileSystemLoader, TemplateError  # noqa: PLC0415  only for who has a template

    here = environment.overlay(loader=FileSystemLoader([file.parent, template_folder()]))
    try:
        text = here.get_template(file.name).render(values)
    # what a template can do wrong once it runs: 1 / 0, options[99], run_id + 1, a call without arguments, a loop of includes
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"{_place(exc, file)}: {str(exc) or type(exc).__name__}", hint=_HINT) from exc
    if wrong := list(_problems(text, values)):
        raise UsageError("\n".join(f"{file}: {problem}" for problem in wrong), hint=_HINT)
    return text


def _place(exc: Exception, file: Path) -> str:
    """The file and line of a template where it happened: jinja2 puts them into the traceback."""
    from jinja2 import TemplateSyntaxError  # noqa: PLC0415

    if isinstance(exc, TemplateSyntaxError):
        return f"{exc.filename}:{exc.lineno}"
    frames = traceback.extract_tb(exc.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if Path(frame.filename).parent == file.parent]
    return lines[-1] if lines else str(file)


def _problems(text: str, values: Mapping[str, Any]) -> Iterator[str]:
    """What orch would miss in the job of such a script."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        yield "does not begin with #!/bin/bash, which sbatch demands"
    end = next((number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    told = [found[1].strip() for line in lines[:end] if (found := re.match(r"#SBATCH\s+(.*)", line))]
    if dropped := [option for option in values["options"] if option not in told]:
        yield f"leaves out `#SBATCH {dropped[0]}`: all of `options` go before the first command, where sbatch reads them"
    for option in told:
        if option not in values["options"]:
            try:
                check_option(re.sub(r"^(--[a-z-]+)\s+", r"\1=", option))
            except ValueError as error:
                yield f"`#SBATCH {option}`: {error}"
    commands = [line for line in lines[end:] if not line.lstrip().startswith("#")]
    if not any(re.search(r"\bsrun\b", line) for line in commands):
        yield "has no srun, which starts the agents"
    if values["spare_count"] and not any(re.search(r"\bnode\.sh\S* nodes\b", line) for line in commands):
        yield "does not ask `node.sh nodes` which nodes to run on, as slurm.spare_nodes needs"
    if dropped := [option for option in values["srun_options"] if option not in text]:
        yield f"leaves out {dropped[0]}: all of `srun_options` go to srun"
