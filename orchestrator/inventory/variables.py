"""Environment variables from the command line (--env), checked like those of an inventory file."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.errors import UsageError
from orchestrator.inventory.fields import check_env_name, check_env_value


def parse_variables(words: Iterable[str]) -> dict[str, str]:
    """Parse the NAME=VALUE of each `--env`; UsageError for a wrong name or form, without the value, which may be a secret."""
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            hint = "as in --env MODEL_PATH=/data/qwen, once per variable"
            raise UsageError("--env without =: not NAME=VALUE", hint=hint)
        if name in variables:
            raise UsageError(f"--env {name} is given twice", hint="omit one of them")
        try:
            variables[check_env_name(name)] = check_env_value(value)
        except ValueError as error:
            text = str(error).replace("delete the line", "omit it")
            hint = "variables that are allowed in env: of an inventory are here, too"
            raise UsageError(f"--env {name}: {text}", hint=hint) from error
    return variables
