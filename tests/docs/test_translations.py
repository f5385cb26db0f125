"""Pages in Chinese: as many sections as the English ones, with the same commands and the same links, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import ROOT

TRANSLATED = {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix().replace(".zh-CN", "")
    for path in sorted([*ROOT.glob("*.zh-CN.md"), *ROOT.glob("docs/*.zh-CN.md")])
}
LEFT_OUT = ("## Next to other launchers",)  # its table is measured once, and the page refers to it


def _sections(path: Path) -> list[str]:
    """The text of each section with its heading."""
    return re.split(r"^(?=#+ )", path.read_text("utf-8"), flags=re.MULTILINE)[1:]


def _code(section: str) -> list[str]:
    return re.findall(r"^```\w*\n.*?^```$", section, re.MULTILINE | re.DOTALL)


def _links(section: str) -> set[str]:
    """The pages and files that a section refers to, without other languages."""
    links = (link.replace(".zh-CN", "") for link in re.findall(r"\]\(([^)]+)\)", section))
    return {link for link in links if not link.startswith("README")}


def test_pages_for_the_first_day_are_translated() -> None:
    assert len(TRANSLATED) == 4


@pytest.mark.parametrize(("translation", "original"), TRANSLATED.items())
def test_translation_has_the_sections_commands_and_links_of_the_original(translation: str, original: str) -> None:
    ours, theirs = _sections(ROOT / translation), _sections(ROOT / original)
    assert len(ours) == len(theirs)
    for section, source in zip(ours, theirs, strict=True):
        heading = source.partition("\n")[0]
        assert heading.partition(" ")[0] == section.partition(" ")[0], heading
        assert _code(section) == _code(source), heading
        if heading not in LEFT_OUT:
            assert _links(section) == _links(source), heading
            assert section.count("\n|") == source.count("\n|"), heading
