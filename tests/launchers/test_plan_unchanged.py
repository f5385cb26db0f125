"""A launcher carries out the plan that it gets: what changes a plan is in plan/resolve.py, where it can be printed before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.paths import ROOT

# The functions in which a launcher may keep the plan that it is given, and the calls that keep one.
TAKES = frozenset({"__init__", "start", "begin", "learn"})
KEEPING_CALLS = frozenset({"NewestPlan", "self._newest.begin", "self._newest.learn"})


def _changes(source: str) -> Iterator[tuple[str, str]]:
    """The functions that keep another plan than one they got, with the expression."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.Call) and ast.unparse(statement.func) in KEEPING_CALLS:
                [argument] = statement.args
                if ast.unparse(argument) != "plan":
                    yield function.name, ast.unparse(argument)
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


SOURCE = """
class Launcher:
    def connect(self, plan):
        self._plan = replace(plan, a=1)
    def push(self, plan):
        self._newest.begin(with_b(plan))
    def start(self, plan):
        self._plan = plan
        self._newest.begin(plan)
"""


def test_launcher_that_changes_its_plan_is_found() -> None:
    assert list(_changes(SOURCE)) == [("connect", "replace(plan, a=1)"), ("push", "with_b(plan)")]
