"""Fields of `slurm:` for one run, from the command line; checked like those of an inventory file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.errors import UsageError
from orchestrator.inventory.document import Problem, problem_from_pydantic
from orchestrator.inventory.slurm import Container, SlurmOptions, sbatch_option, template_problems
from orchestrator.portable.names.addresses import displayed
from orchestrator.portable.names.slurm_options import OPTION_OF, option_name

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory

LISTS = ("options", "setup")
_HINT = "correct it; the fields and their values are those of `slurm:` in an inventory (docs/inventories.md)"


@dataclass(frozen=True, slots=True)
class SlurmSetting:
    """One option of the command line, such as --time or --set; `path` is the field in `slurm:`."""

    option: str
    path: tuple[str, ...]
    value: str

    @property
    def title(self) -> str:
        """The option as messages name it."""
        return f"--set slurm.{'.'.join(self.path)}" if self.option == "--set" else self.option

    @property
    def word(self) -> str:
        """The setting as the record of the run keeps it."""
        return f"{'.'.join(self.path)}={self.value}"


def parse_setting(option: str, word: str) -> SlurmSetting:
    """Parse the KEY=VALUE of `--set slurm.KEY=VALUE`; UsageError if the word is not of that form."""
    found = re.fullmatch(r"slurm\.([A-Za-z_.-]+)=(.*)", word, re.DOTALL)
    if found is None:
        hint = "as in --set slurm.mem=64G"
        raise UsageError(f"{option} {displayed(word)}: not a field of `slurm:` with a value", hint=hint)
    return SlurmSetting(option, tuple(found[1].split(".")), found[2])


def with_slurm_settings(inventory: Inventory, settings: Sequence[SlurmSetting]) -> Inventory:
    """
    Return the inventory with these fields of `slurm:`; the items of a list are added to those of the file.

    Raises:
        UsageError: a field or a value is not valid, or a field is set twice; names each option.
    """
    if not settings:
        return inventory
    fields = _merged(inventory.slurm.model_dump(mode="json"), settings)
    try:
        slurm = SlurmOptions.model_validate(fields)
    except ValidationError as error:
        problems = [
            problem_from_pydantic(details, _allowed(details["loc"]), meant=_meant(details["loc"]))
            for details in error.errors()
        ]
        raise _error(problems, settings) from error
    if problems := template_problems(inventory.file, slurm):
        raise _error([Problem(problem.path[1:], problem.text) for problem in problems], settings)
    return inventory.model_copy(update={"slurm": slurm})


def _merged(fields: dict[str, Any], settings: Sequence[SlurmSetting]) -> dict[str, Any]:  # Any: JSON
    """The fields of the file with those of the command line, which also replace an entry of `options` for the same option."""
    title_by_path: dict[tuple[str, ...], str] = {}
    replaced = {OPTION_OF.get(setting.path[0]) for setting in settings}
    fields["options"] = [option for option in fields["options"] if option_name(option) not in replaced]
    for setting in settings:
        first, *rest = setting.path
        if first in LISTS and not rest:
            fields[first] = [*fields[first], setting.value]
            continue
        if setting.path in title_by_path:
            hint = "give one of the two"
            raise UsageError(f"{setting.title}: {first} is set by {title_by_path[setting.path]} as well", hint=hint)
        title_by_path[setting.path] = setting.title
        value = setting.value
        if setting.path == ("template",) and not value.startswith(("~", "-")):
            value = str(Path(value).absolute())  # relative to the working folder; a file's own paths, to the file
        fields[first] = {**(fields.get(first) or {}), ".".join(rest): value} if rest else value
    return fields


def _error(problems: Sequence[Problem], settings: Sequence[SlurmSetting]) -> UsageError:
    """One line per problem, which begins with the option that set the field."""
    rows = []
    for problem in problems:
        path = tuple(part for part in problem.path if isinstance(part, str))
        exact = [setting.title for setting in settings if setting.path == path]
        near = [f"{setting.title}: slurm.{'.'.join(path)}" for setting in settings if setting.path[0] == path[0]]
        rows.append(f"{(exact or near)[0]}: {problem.text}")
    return UsageError("\n".join(rows), hint=_HINT)


def _meant(path: tuple[str | int, ...]) -> str:
    return sbatch_option(str(path[0])) if len(path) == 1 else ""


def _allowed(path: tuple[str | int, ...]) -> list[str]:
    model = Container if path[0] == "container" and len(path) > 1 else SlurmOptions
    return list(model.model_fields)
