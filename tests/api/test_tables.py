"""Rows become a table of a notebook, and a DataFrame if pandas is installed."""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

import pytest

from orchestrator.api.tables import MOST_ROWS, Rows
from orchestrator.errors import UsageError

ROWS = Rows([{"step": 1, "loss": 2.123456789, "note": None}, {"step": 2, "loss": 1.0, "rate": 3.0}])


def _cells(html: str) -> list[list[str]]:
    rows = html.replace(' style="text-align: left"', "").split("<tr>")[1:]
    return [[cell.partition("</")[0] for cell in row.replace("<th>", "<td>").split("<td>")[1:]] for row in rows]


def test_table_has_the_columns_of_all_rows_that_have_a_value() -> None:
    assert _cells(ROWS._repr_html_()) == [["step", "loss", "rate"], ["1", "2.12346", ""], ["2", "1", "3"]]


def test_text_is_escaped() -> None:
    html = Rows([{"<i>": "<script>alert('x')</script>", "tags": ("a", "b")}])._repr_html_()
    assert "<script" not in html
    assert "&lt;i&gt;" in html
    assert "a b" in html


def test_long_table_shows_its_begin_and_its_end() -> None:
    rows = _cells(Rows({"step": step} for step in range(MOST_ROWS + 5))._repr_html_())
    assert (rows[1], rows[11], rows[12], rows[-1]) == (["0"], ["… 5 more rows"], ["15"], ["24"])


def test_part_of_the_rows_is_a_table_too() -> None:
    assert _cells(ROWS[-1:]._repr_html_()) == [["step", "loss", "rate"], ["2", "1", "3"]]
    assert ROWS[0]["step"] == 1


def test_no_rows_are_an_empty_table() -> None:
    assert _cells(Rows()._repr_html_()) == []


def test_frame_has_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=tuple))
    assert ROWS.to_frame() == tuple(ROWS)


def test_missing_pandas_is_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas cannot be imported") as raised:
        ROWS.to_frame()
    assert "pip install pandas" in raised.value.hint
    if sys.version_info >= (3, 11):
        assert traceback.format_exception_only(raised.value)[-1].startswith("next: python -m pip install pandas")
