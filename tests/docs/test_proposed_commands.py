"""Every orch command that a message proposes is one that the command line accepts."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator.cli.app import VERBS, app, load, run
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.inventory.proposed import with_inventory
from orchestrator.transports.ssh.commands import login_command
from tests.paths import ROOT

_VERBS = "|".join(name for name in VERBS if name not in ("bench", "inventory"))
_PROPOSED = re.compile(rf"\borch ((?:bench|inventory|{_VERBS})(?![\w-])(?!:).*)", re.DOTALL)
_WORD = re.compile(r"[^\s`;,()]+")
EXAMPLES = ROOT / "orchestrator/cli/examples.py"
"""Whole command lines, which tests/cli/test_app.py tests."""
_VALUE = "VALUE"
"""The placeholder in a message for a value that the program fills in."""
_HARMLESS = ("list", "inventory validate -i local", "nodes --help", "check --help", "lint --help")


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of a module without its docstrings; filled-in values are _VALUE."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = (part.value if isinstance(part, ast.Constant) else _VALUE for part in node.values)
            yield node.lineno, "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (documented | parts):
            yield node.lineno, re.sub(r"\{\w+\}", _VALUE, node.value)


def _arguments(text: str) -> list[str]:
    """The words of a command in a sentence: all to a backquote, else as far as they are no plain English."""
    backquoted = text.partition("`")[0] if "`" in text else ""
    if backquoted and not re.search(r"[.;:]\s", backquoted):
        return shlex.split(backquoted)
    verb, *words = _WORD.findall(re.split(r"\n|: |;|, |   | >", text)[0])
    found = [verb]
    for word in words:
        is_value = found[-1].startswith("-") and not word.islower()
        is_noun = word in ("comm", "show", "validate", "import", "new", "scontrol", "full", "batch")
        if not (word.startswith("-") or is_value or is_noun or _VALUE in word or word.isupper() or ":" in word):
            break
        found.append(word.strip("'\".:"))
    return found


def _proposals() -> Iterator[tuple[str, list[str]]]:
    for path in sorted(set(ROOT.glob("orchestrator/**/*.py")) - {EXAMPLES}):
        for line, text in _texts(ast.parse(path.read_text("utf-8"))):
            for start in (found.start() for found in re.finditer(r"\borch ", text)):
                if found := _PROPOSED.match(text[start:]):
                    yield f"{path.relative_to(ROOT)}:{line}", _arguments(found[1])


def error_of(arguments: list[str]) -> str:
    """The error of the command line; empty if it accepts the words. A command that lacks only its argument is named in prose."""
    verb, *words = arguments
    command = load(verb)
    while isinstance(command, click.Group):
        if not words:
            return ""  # `orch inventory`, in prose
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command = command.commands[words.pop(0)]
    words = words[: words.index("--")] if "--" in words else words
    try:
        parent = click.Context(app, **app.context_settings)  # its names of the help option are kept by the command
        command.make_context(arguments[0], words, parent=parent, obj=("true",) if "--" in arguments else None)
    except click.MissingParameter:
        return ""
    except click.ClickException as exc:
        return exc.format_message()
    return ""


def test_every_proposed_command_is_accepted() -> None:
    proposals = list(_proposals())
    assert len(proposals) > 120
    errors = {f"{source}: orch {' '.join(words)}": error_of(words) for source, words in proposals}
    assert {source: error for source, error in errors.items() if error} == {}


@pytest.mark.parametrize("line", _HARMLESS)
def test_harmless_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    assert run(line.split()) == 0


def test_proposed_ssh_command_has_no_quoted_home_folder() -> None:
    line = login_command(Node(name="n0"), SshOptions(config="~/.ssh/config"))
    assert shlex.split(line.strip("`"))[:3] == ["ssh", "-F", str(Path("~/.ssh/config").expanduser())]


def test_proposed_command_names_the_inventory_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "run it there (orch ssh n0); `orch check` and orch ssh-launch, or orch check -i x"
    assert with_inventory(text, "a b.yaml") == (
        "run it there (orch ssh -i 'a b.yaml' n0); `orch check -i 'a b.yaml'` and orch ssh-launch, or orch check -i x"
    )
    for default in (None, "", "inventory.yaml", str(tmp_path / "inventory.yaml")):
        assert with_inventory(text, default) == text
