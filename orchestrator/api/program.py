"""The program of a run as a command line: words, one text, or a function."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError

ProgramLike = str | Sequence[str] | Callable[..., object] | None
"""The program and its arguments, as after `--`; or a top-level function of a file; None: the shared trainer."""
# The file runs under another name, so its code below `if __name__ == "__main__":` does not run on the nodes.
CALL = "import json, runpy, sys; file, name, args, kwargs = sys.argv[1:]; runpy.run_path(file, run_name='orch')[name](*json.loads(args), **json.loads(kwargs))"


def argv_of(program: ProgramLike, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not callable(program):
        if args or kwargs:
            raise UsageError("args and kwargs are for a function", hint="put a program and its arguments into one list")
        try:
            return None if program is None else tuple(shlex.split(program) if isinstance(program, str) else program)
        except ValueError as exc:
            raise UsageError(f"program {program!r}: {exc}", hint="close the quote, or give a list of words") from exc
    name = getattr(program, "__qualname__", "")
    file = inspect.getsourcefile(program) if inspect.isfunction(program) else None
    if file is None or not name.isidentifier():
        raise UsageError(f"{program!r} is not a function of a file", hint="define it at the top level of one")
    path = os.path.relpath(Path(file).resolve(), Path.cwd().resolve())
    if path.startswith(".."):
        text = f"{file} is not below {Path.cwd()}, so it would not be sent to the nodes"
        raise UsageError(text, hint="start from its folder")
    try:
        return ("-c", CALL, path, name, json.dumps(list(args)), json.dumps(dict(kwargs)))
    except (TypeError, ValueError) as exc:
        raise UsageError(f"arguments of {name}: {exc}", hint="use numbers, text, lists and mappings") from exc
