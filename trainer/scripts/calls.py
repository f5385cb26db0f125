"""Calls of libraries with other arguments than those of the script: a part of a remedy, which a run tries (docs/decisions/071)."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from datetime import timedelta
from typing import Any, Callable, Mapping

from . import CHANGED_CALLS

# `Any` below stands for the modules of libraries and their values, which are not imported here.


def change(module: Any) -> None:
    """Change the functions of a module that was just imported."""
    for call in json.loads(os.environ[CHANGED_CALLS]):
        if call["module"] == module.__name__:
            *owners, name = call["function"].split(".")
            owner = functools.reduce(getattr, owners, module)
            setattr(owner, name, with_arguments(getattr(owner, name), call["arguments"]))


def with_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with these values for these parameters; None stands for their defaults."""
    signature = inspect.signature(function)
    values = {
        name: signature.parameters[name].default if value is None else _value(value)
        for name, value in arguments.items()
    }

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(values)
        _report(
            f"{function.__qualname__} is called with {', '.join(f'{name}={value}' for name, value in values.items())}"
        )
        return function(*bound.args, **bound.kwargs)

    return changed


def _value(value: Any) -> Any:
    return timedelta(**value) if isinstance(value, dict) and value.keys() == {"seconds"} else value


@functools.lru_cache(maxsize=None)
def _report(text: str) -> None:
    """Write once per rank what was changed, so that the log shows that it was."""
    sys.stderr.write(f"NOTE: to prove a remedy, {text}\n")
