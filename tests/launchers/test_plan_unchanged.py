"""A launcher carries out the plan that it gets: what changes a plan is in plan/resolve.py, where it can be printed before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.paths import ROOT

# Where a launcher takes a plan, as it is.
TAKES = frozenset({"__init__", "start", "begin", "learn"})


def _changes(source: str) -> Iterator[tuple[str, str]]:
    """The functions that keep another plan than one they got, with the expression."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in ast.walk(function):
            if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) or statement.value is None:
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            keeps = any(isinstance(target, ast.Attribute) and target.attr == "_plan" for target in targets)
            is_given = isinstance(statement.value, ast.Name) and statement.value.id == "plan"
            if keeps and not (is_given and function.name in TAKES):
                yield function.name, ast.unparse(statement.value)


def test_no_launcher_changes_its_plan() -> None:
    found = {
        str(path.relative_to(ROOT)): changes
        for path in sorted((ROOT / "orchestrator/launchers").rglob("*.py"))
        if (changes := list(_changes(path.read_text("utf-8"))))
    }
    assert found == {}


def test_launcher_that_changes_its_plan_is_found() -> None:
    source = "class A:\n def connect(self, plan):\n  self._plan = replace(plan, a=1)\n def start(self, plan):\n  self._plan = plan\n"
    assert list(_changes(source)) == [("connect", "replace(plan, a=1)")]
