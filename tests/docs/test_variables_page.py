"""docs/variables.md has a section per variable of the table, which the search finds by its name. After a change of the table: `pytest tests/docs/test_variables_page.py --update`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import pytest

from orchestrator.variables import VARIABLES, Row
from orchestrator.variables.conditions import phrase
from tests.paths import ROOT

PAGE = ROOT / "docs" / "variables.md"
HEAD = f"""\
# Variables that `orch lint` knows

Generated from `orchestrator/variables/`, {len(VARIABLES)} variables. A default `18 (2.14)` is that of version 2.14 and newer; `auto` is
chosen at run time. A verdict on *some values* has a pattern, which is in that folder. How values are judged is in
[orch lint](lint.md).
"""
TITLES = {
    "NCCL": "NCCL",
    "torch": "torch",
    "Enflame": "ECCL, torch_gcu and TopsRider",
    "other": "OpenMP, CUDA, UCX, DeepSpeed and launchers",
}


def _title(row: Row) -> str:
    library = row.source.partition(" ")[0] if row.library == "nothing" else row.library
    if library in ("ECCL", "torch_gcu", "TopsRider", "Enflame's"):
        return TITLES["Enflame"]
    return TITLES.get(library, TITLES["other"])


def _wrap(text: str, indent: str = "") -> str:
    """Lines of Markdown; `|` and `*` are literal there."""
    plain = re.sub(r"\s+", " ", text)
    return textwrap.fill(plain, 160, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _verdicts(row: Row) -> Iterator[str]:
    for verdict in row.verdicts:
        plain = verdict.value.removeprefix("(?i)").replace("0*1", "1").replace("|", ", ")
        values = plain if re.fullmatch(r"[\w, ]+", plain) else "some values" if verdict.value else "every value"
        values = f"values above {verdict.above}" if verdict.above is not None else values
        values = f"values below {verdict.below}" if verdict.below is not None else values
        when = f" {phrase(verdict.when)}" if verdict.when else ""
        yield _wrap(f"- **{verdict.severity.value}** for {values}{when}: {verdict.reason}", "  ")


def _section(row: Row) -> Iterator[str]:
    versions = f" ≥ {row.since}" if row.since else f" < {row.until}" if row.until else ""
    default = ", ".join(f"{text} ({first})" if first else text for first, text in row.defaults().items())
    accepts = f" Accepts: {row.kind.text}." if row.kind.text else ""
    default = f" Default: {default}." if default else ""
    yield f"#### {row.name}\n"
    yield _wrap(f"{row.text.rstrip('.')}.{accepts}{default} Read by {row.library}{versions}.")
    if row.verdicts:
        yield ""
        yield from _verdicts(row)
    yield ""


def _lines() -> Iterator[str]:
    yield HEAD
    for heading in TITLES.values():
        yield f"## {heading}\n"
        for row in sorted((row for row in VARIABLES.values() if _title(row) == heading), key=lambda row: row.name):
            yield from _section(row)


def test_page_is_current(request: pytest.FixtureRequest) -> None:
    text = "\n".join(_lines())
    if request.config.getoption("--update"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
