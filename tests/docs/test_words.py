"""The project's own words: plain English and the field's terms, in names, docstrings, comments and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

FOLDERS = ("orchestrator", "trainer", "tests", "bench", "scripts")
THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).as_posix() != THIS
)
# Module names of earlier versions, which did not name their contents.
OLD_MODULES = frozenset(
    [
        "accelerators_table",
        "again",
        "allocation_here",
        "apart",
        "bar_of",
        "clocks",
        "contact",
        "endings",
        "finite",
        "fit",
        "following",
        "hear",
        "hearing",
        "here",
        "hang",
        "leftovers",
        "loop",
        "mail",
        "marks",
        "merge",
        "notice",
        "observed",
        "own_template",
        "place",
        "queueing",
        "receive",
        "records",
        "render",
        "room",
        "roll_call",
        "rules",
        "session",
        "spans",
        "supervise",
        "watch_node",
    ]
)
_OLD = (
    r"ears?|deaf|hear|hears|heard|hearing|tell|tells|told|says|said|ask|asks|asked|asking|beats?|mail(?!_(?:type|user))|midst|barren"
    r"|culprit|vouch\w*|knock\w*|greet\w*|hunt\w*|again|anew|apart|seen|leftovers?|contact|endings?|marks?|places?|goes|came|comes"
)
# A metaphor as a part of a name, or a whole name without a noun.
OLD_NAMES = re.compile(
    rf"(?:^|_)(?:{_OLD})(?:_|$)|^_?(?:one|own|other|others|what|who|whose|where|room|rooms|fit|fits|explained|demands?|rules?|notice|notes)$",
    re.IGNORECASE,
)
PHRASES = re.compile(
    r"\bso many \w+ as\b|\btold\b|\btells?\b|\bdeaf\b|\bhears?\b|\bheard\b|\bbeats?\b|\bears?\b|\bis at it\b|\bwas at it\b|\bstill at it\b"
    r"|\bin the midst\b|\bas such\b|\bbesides\b|\bgoes on\b|\bgo on\b|\bwent on\b|\bof its\b|\bof orch's\b"
    r"|\bof the user's\b|\banew\b|\bin vain\b|\bis nothing that\b|\bon the spot\b|\bset apart\b|\bwhat (?:it|they|a run|the run) (?:comes?|came) to\b"
    r"|\blets? (?:us|it|them|one) (?:not|in)\b|\bsays? (?:so|that|what|which|who|where|whether)\b|\bsaid (?:so|that|what)\b"
    r"|\b(?:a|one) rank a device\b|\ba (?:thread|process|connection|line|file|folder) a (?:node|rank|run)\b|\bwho (?:\w+ ){1,4}gets\b",
    re.IGNORECASE,
)
RIDDLES = re.compile(r"^\s*(?:What|Whether|Who|Where|Since when|For how long|Of)\b")


def _words(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """The names, strings and docstrings, each with its line and one of these three words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.lineno, "string", node.value
        elif isinstance(node, ast.arg):
            yield node.lineno, "name", node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "name", node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "name", node.attr
        elif isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(node, ast.Module):
                yield node.lineno, "name", node.name
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, "docstring", text


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """The comments, if a phrase is behind some `#`: the tokenizer takes longer than all the rest."""
    if any(PHRASES.search(line.partition("#")[2]) for line in text.splitlines() if "#" in line):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def findings(text: str, path: str) -> list[str]:
    """Return `path:line: text` for each name, phrase and docstring that is not in the project's words."""
    found: set[tuple[int, str]] = set()
    for line, kind, words in _words(ast.parse(text)):
        if kind == "name" and OLD_NAMES.search(words):
            found.add((line, words))
        elif kind == "string":
            found |= {(line, hit[0]) for hit in PHRASES.finditer(words)}
        elif kind == "docstring" and RIDDLES.match(words):
            found.add((line, words.partition("\n")[0]))
    found |= {(line, hit[0]) for line, words in _comments(text) for hit in PHRASES.finditer(words)}
    return [f"{path}:{line}: {hit}" for line, hit in sorted(found)]


def test_words_are_plain() -> None:
    assert [finding for path in SOURCES for finding in findings(Path(ROOT, path).read_text("utf-8"), path)] == []


def test_no_module_has_its_old_name() -> None:
    assert {
        Path(path).stem for path in SOURCES if path.startswith(("orchestrator/", "trainer/"))
    } & OLD_MODULES == set()


@pytest.mark.parametrize("name", ["is_told", "the_ear", "told", "one", "_where", "beat_s"])
def test_old_names_are_found(name: str) -> None:
    assert OLD_NAMES.search(name)


@pytest.mark.parametrize("text", ["so many lines as a node", "the run goes on", "nobody is told", "at the least, anew"])
def test_old_phrases_are_found(text: str) -> None:
    assert PHRASES.search(text)


def test_each_kind_of_word_is_read() -> None:
    text = 'def told(one):\n    """What it is."""\n    other = "it goes on"  # as such\n    x.heard = 1\n'
    assert findings(text, "f") == [
        "f:1: one",
        "f:1: told",
        "f:2: What it is.",
        "f:3: as such",
        "f:3: goes on",
        "f:3: other",
        "f:4: heard",
    ]
