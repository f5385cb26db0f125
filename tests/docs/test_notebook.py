"""docs/notebook.ipynb, cell by cell in one namespace, and its results: two trainings on this machine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from orchestrator.run import RunState
from tests.paths import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.train, pytest.mark.slow, pytest.mark.xdist_group("notebook")]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def _cells(kind: str) -> list[str]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


async def _execute(cells: list[str], names: dict[str, Any]) -> list[str]:
    """Execute the cells as IPython does, which allows `await`; return the HTML of the last expression of each that has some."""
    shown = []
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            tree.body[-1] = ast.fix_missing_locations(ast.Assign([ast.Name("_", ast.Store())], last.value, lineno=1))
        code = compile(tree, NOTEBOOK, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names["_"] = None
        outcome = FunctionType(code, names)()
        if inspect.iscoroutine(outcome):
            await outcome
        if hasattr(names["_"], "_repr_html_"):
            shown.append(names["_"]._repr_html_())
    return shown


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The names that the notebook has defined, and the tables that it shows."""
    folder, names = tmp_path_factory.mktemp("notebook"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("HOME", str(folder))
        patched.setenv("ORCH_HOME", str(folder / ".orch-home"))
        shown = asyncio.run(_execute(_cells("code"), names))
        yield names, shown


def test_notebook_shows_its_runs(executed: tuple[dict[str, Any], list[str]]) -> None:
    names, [run, metrics, differences, runs] = executed
    assert "2 nodes, 2 ranks" in names["plan"]
    assert [names[name].record.state for name in ("first", "second", "idle")] == [
        RunState.DONE,
        RunState.DONE,
        RunState.STOPPED,
    ]
    assert all(text in run for text in (names["first"].id, "DONE", "last_loss"))
    assert metrics.count("<tr>") == 6
    assert ">lr<" in differences
    assert runs.count("<tr>") == 4


def test_metrics_are_those_of_the_trainer(executed: tuple[dict[str, Any], list[str]]) -> None:
    names, _ = executed
    rows, summary = names["metrics"], names["first"].record.summary
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert math.isclose(rows[-1]["loss"], summary["last_loss"])
    assert Path(names["copied"].target).read_text().splitlines() == [json.dumps(row) for row in rows]
    assert str(names["line"]).startswith("[n0:0] summary steps=5 ")


def test_python_page_shows_the_notebook() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert [cell for cell in _cells("code") if f"```python\n{cell}\n```" not in page] == []
