"""Rows of values as HTML for notebooks, and as a DataFrame of pandas, which orch does not require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional

MOST_ROWS = 20
"""The rows that a notebook shows; of more, the first and the last ones."""


class Rows(list[dict[str, Any]]):
    """A list of mappings; a notebook shows it, and a part of it, as a table."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: SupportsIndex | slice) -> dict[str, Any] | Rows:
        return Rows(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def to_frame(self) -> pd.DataFrame:
        """
        Return a pandas.DataFrame with these rows.

        Raises:
            UsageError: pandas cannot be imported.
        """
        try:
            import pandas as pd
        except ImportError as exc:
            hint = "python -m pip install pandas; without it, the rows are a list of mappings"
            raise UsageError(f"pandas cannot be imported: {exc}", hint=hint) from exc
        return pd.DataFrame(list(self))

    def _repr_html_(self) -> str:
        names = dict.fromkeys(name for row in self for name in row)
        columns = [name for name in names if any(row.get(name) not in (None, "", ()) for row in self)]
        if len(self) <= MOST_ROWS:
            return html_table(_cells(self, columns), columns)
        half = MOST_ROWS // 2
        omitted = [f"… {len(self) - MOST_ROWS} more rows", *[""] * (len(columns) - 1)]
        return html_table([*_cells(self[:half], columns), omitted, *_cells(self[-half:], columns)], columns)


def _cells(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> Iterator[list[object]]:
    return ([row.get(name) for name in columns] for row in rows)


def html_table(rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """A table without colours and scripts, so that it has the colours of the page, light or dark."""
    head = f"<thead>{_row(columns, 'th')}</thead>" if columns else ""
    return f"<table>{head}<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"


def _row(values: Sequence[object], tag: str) -> str:
    cells = (f'<{tag} style="text-align: left">{escape(_text(value))}</{tag}>' for value in values)
    return f"<tr>{''.join(cells)}</tr>"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
