"""The variables that a Python program sets for itself, by `os.environ` and `os.putenv`. The program is parsed, not run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from orchestrator.lint.assignment import Assignment, Script, Unread

_OF_LAUNCHERS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"))
"""Names by which a launcher numbers the ranks: a program that sets them starts its ranks itself, which a launch reports."""


def read_python(text: str, file: str) -> Script:
    """Read the values that are literals; others are unknown. No value has a range, as its mending is left to the author."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of the program's own strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as exc:
        return Script((), unread=(Unread(getattr(exc, "lineno", None) or 1, language="Python"),), file=file)
    found = [
        Assignment(name, value, file, node.lineno, pattern=value or "")
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.Call))
        for name, value in _set_by(node)
        if name not in _OF_LAUNCHERS
    ]
    return Script(tuple(sorted(found, key=lambda entry: entry.line)), file=file)


def _set_by(node: ast.Assign | ast.Call) -> Iterator[tuple[str, str | None]]:
    """Name and value of each variable that a statement or call sets."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield from _pair(target.slice, node.value)
    elif isinstance(node.func, ast.Attribute):
        yield from _set_by_call(node.func, node)


def _set_by_call(function: ast.Attribute, call: ast.Call) -> Iterator[tuple[str, str | None]]:
    is_pair = function.attr == "setdefault" and _is_environ(function.value)
    is_pair = is_pair or (function.attr == "putenv" and ast.unparse(function.value) == "os")
    if is_pair and len(call.args) > 1:
        yield from _pair(call.args[0], call.args[1])
    elif function.attr == "update" and _is_environ(function.value):
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield keyword.arg, _text(keyword.value)
        for mapping in call.args:
            if isinstance(mapping, ast.Dict):
                for key, value in zip(mapping.keys, mapping.values, strict=True):
                    yield from () if key is None else _pair(key, value)


def _pair(name: ast.expr, value: ast.expr) -> Iterator[tuple[str, str | None]]:
    if (known := _text(name)) is not None:
        yield known, _text(value)


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in ("os.environ", "environ")


def _text(node: ast.expr) -> str | None:
    """The text of a literal, also of `str(1)`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and len(node.args) == 1:
        node = node.args[0]
        return str(node.value) if isinstance(node, ast.Constant) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
