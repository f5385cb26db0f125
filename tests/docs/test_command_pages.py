"""
docs/commands has a page per command, made from its help. After a change of a command: `pytest tests/docs/test_command_pages.py --update`.

Generated are the beginning of a page, up to the comment, and its options or commands at the end. Written by hand, and kept, are the text
between them and the last column of the options. Details of an option that several launches have are written in the pages SHARED alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click
import pytest

from orchestrator.cli.app import GROUPS, VERBS, app, load
from orchestrator.cli.examples import EXAMPLES
from orchestrator.cli.options import PANELS, PanelCommand
from tests.paths import ROOT

FOLDER = ROOT / "docs" / "commands"
INDEX = "index"
BY_HAND = (
    "\n<!-- Generated from the help: the text above, and the options below. See tests/docs/test_command_pages.py -->\n"
)
SHARED = ("ssh-launch", "submit")


def _text(name: str) -> str:
    """A page; empty for a new command."""
    path = FOLDER / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else ""


def _cell(text: str) -> str:
    """The text in a table; limits and defaults in round brackets, as square ones may be links."""
    return re.sub(r" \[([^\]]+)\]$", r" (\1)", re.sub(r"\s+", " ", text)).replace("|", "\\|")


def _context(command: click.Command, path: str) -> click.Context:
    return click.Context(command, info_name=f"orch {path}", **app.context_settings)


def _options(command: click.Command, path: str) -> dict[str, list[tuple[str, str]]]:
    """Heading -> options as they are typed, each with its help; a command with few options has one empty heading."""
    context = _context(command, path)
    options = [param for param in command.get_params(context) if "--help" not in param.opts]
    records = {param.name: record for param in options if (record := param.get_help_record(context)) and record[1]}
    panels = PANELS if isinstance(command, PanelCommand) else {"": tuple(records)}
    found = {heading: [records.pop(name) for name in names if name in records] for heading, names in panels.items()}
    assert not records, f"orch {path}: no heading for {set(records)}"
    return {heading: rows for heading, rows in found.items() if rows}


def _written_details(verb: str) -> dict[tuple[str, str], str]:
    """Command and option -> the hand-written cell in the page of a verb."""
    path, found = verb, {}
    for line in _text(verb).splitlines():
        if line.startswith("### orch "):
            path = line.removeprefix("### orch ")
        elif row := re.fullmatch(r"\| `(-[^`]+)` \| .*? \| (.*) \|", line):
            found[path, row[1]] = row[2]
    return found


def _details(verb: str) -> dict[tuple[str, str], str]:
    sources = SHARED if isinstance(load(verb), PanelCommand) else ()
    shared = {(verb, option): text for name in sources for (_, option), text in _written_details(name).items() if text}
    return _written_details(verb) | (shared if verb not in SHARED[:1] else {})


def _table(options: list[tuple[str, str]], details: Mapping[tuple[str, str], str], path: str) -> Iterator[str]:
    """A row per option; the details are left out if no option has any."""
    yield ""
    rows = [(option.replace("|", ", "), _cell(text)) for option, text in options]
    cells = [(f"`{option}`", text, details.get((path, option), "")) for option, text in rows]
    width = 3 if any(detail for *_, detail in cells) else 2
    for row in (("option", "meaning", "details"), ("---",) * 3, *cells):
        yield f"| {' | '.join(row[:width])} |"


def _beginning(command: click.Command, path: str) -> Iterator[str]:
    """The text of the help, with usage and examples."""
    yield f"\n{inspect.cleandoc(command.help or '')}"
    yield f"\n    orch {path} {' '.join(command.collect_usage_pieces(_context(command, path)))}"
    if lines := EXAMPLES.get(path):
        yield f"\nExample{'s' if len(lines) > 1 else ''}:\n"
        yield from (f"    {line}" for line in lines)


def _end(command: click.Command, verb: str) -> Iterator[str]:
    """The options by heading, or the commands of a group."""
    details = _details(verb)
    if isinstance(command, click.Group):
        yield "## Commands"
        for name, sub in command.commands.items():
            yield f"\n### orch {verb} {name}"
            yield from _beginning(sub, f"{verb} {name}")
            for options in _options(sub, f"{verb} {name}").values():
                yield from _table(options, details, f"{verb} {name}")
    else:
        yield "## Options"
        for heading, options in _options(command, verb).items():
            yield from [f"\n### {heading}"] if heading else []
            yield from _table(options, details, verb)


def _index() -> Iterator[str]:
    yield "# Commands"
    for heading, verbs in GROUPS.items():
        yield f"\n## {heading}"
        yield "\n| command | what it does |"
        yield "|---|---|"
        yield from (f"| [`orch {verb}`]({verb}.md) | {_cell(text)} |" for verb, text in verbs.items())


def _page(name: str, by_hand: str) -> str:
    """The page with this hand-written text, which may be followed by an earlier end."""
    if name == INDEX:
        return "\n".join(_index()) + f"\n{BY_HAND}{by_hand}"
    command = load(name)
    beginning, end = "\n".join((f"# orch {name}", *_beginning(command, name))), "\n".join(_end(command, name))
    written = re.split(r"^## (?:Options|Commands)$", by_hand, maxsplit=1, flags=re.MULTILINE)[0].strip("\n")
    return "\n".join((beginning, BY_HAND, *((written, "") if written else ()), f"{end}\n"))


@pytest.mark.parametrize("name", [INDEX, *VERBS])
def test_page_is_that_of_the_help(name: str, request: pytest.FixtureRequest) -> None:
    page = _page(name, _text(name).partition(BY_HAND)[2])
    if request.config.getoption("--update"):
        (FOLDER / f"{name}.md").write_text(page, "utf-8")
    assert _text(name) == page


def test_every_page_is_that_of_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {INDEX, *VERBS}
