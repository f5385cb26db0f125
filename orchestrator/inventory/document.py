"""
Parse an inventory file: YAML to plain values with the line of each, and problems as messages to its author.

Fields are validated in model.py. Nothing is converted here: a scalar keeps its text, so `22`, `0x10`, `on`, `1:30` and
`1e3` reach an environment variable as they are written in the file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from orchestrator.errors import InventoryError
from orchestrator.portable.names.addresses import displayed

Tree: TypeAlias = "str | list[Tree] | dict[str, Tree] | None"
FieldPath: TypeAlias = "tuple[str | int, ...]"

MAX_INVENTORY_BYTES = 1024 * 1024
# Each use of an alias counts: with nested aliases, ten lines of YAML can expand to 10^9 values.
MAX_VALUES = 200_000
MAX_DEPTH = 16  # the deepest field is nodes[i].env.NAME
MAX_PROBLEMS = 50

_NULL = "tag:yaml.org,2002:null"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map")
)
# `env:` with every line below it commented out is an empty section, not an error.
_MAY_BE_EMPTY = frozenset({"env", "ssh", "slurm", "defaults"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in the file. `line` overrides the line of the field, for a field that the file does not contain."""

    path: FieldPath
    text: str
    line: int | None = None


@dataclass(slots=True)
class Document:
    """A parsed YAML file; `problems` are the parts that were refused."""

    file: str
    digest: str
    tree: dict[str, Tree] = field(default_factory=dict)
    lines: dict[FieldPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    then: str = ""
    """The command to type once the file has been corrected."""

    def line(self, path: FieldPath) -> int:
        """Return the line of a field, or of the nearest enclosing field in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, problems: Iterable[Problem]) -> InventoryError:
        """Build one error from all problems, one line each, in file order."""
        entries = {(each.line or self.line(each.path), dotted_path(each.path), each.text) for each in problems}
        named = ((line, f"{name}: " if name else "", text) for line, name, text in sorted(entries))
        rows = [f"{self.file}:{line}: {name}{_printable(text)}" for line, name, text in named]
        if len(rows) > MAX_PROBLEMS:
            rows = [*rows[:MAX_PROBLEMS], f"{self.file}: and {len(rows) - MAX_PROBLEMS} more"]
        lines = "that line" if len(rows) == 1 else "these lines"
        return InventoryError("\n".join(rows), hint=f"correct {lines}" + (f", then: {self.then}" if self.then else ""))


def read(path: Path) -> Document:
    """Read an inventory of at most MAX_INVENTORY_BYTES; InventoryError if there is none, or it is not one YAML mapping in UTF-8."""
    document = read_mapping(path, "with nodes: among them", then=f"orch inventory validate -i {path}")
    document.tree.setdefault("name", re.sub(r"[^A-Za-z0-9]+", "-", path.stem).strip("-") or "inventory")
    return document


def read_mapping(path: Path, expected: str, *, then: str = "") -> Document:
    """Read a file as `read` does; `expected` is what an error message adds to `must be a mapping of lines`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_INVENTORY_BYTES + 1)
    except OSError as error:
        hint = "give an inventory with -i FILE, or copy one of inventories/*.yaml and edit the lines marked `# edit`"
        raise InventoryError(f"{path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_INVENTORY_BYTES:
        hint = "write nodes as a pattern such as n[0-999], and their common fields under defaults:"
        raise InventoryError(f"{path}: larger than {MAX_INVENTORY_BYTES} bytes", hint=hint)
    document = Document(str(path), hashlib.sha256(data).hexdigest(), then=then)
    root = _compose(data, document)
    if not isinstance(root, MappingNode):
        raise document.error([Problem((), f"must be a mapping of `key: value` lines, {expected}")])
    tree = _TreeBuilder(document).value(root, ())
    assert isinstance(tree, dict)  # a MappingNode becomes a dict
    document.tree = tree
    return document


def _compose(data: bytes, document: Document) -> Node | None:
    """Parse to nodes, which keep tags, lines and text; no Python object is constructed, so no tag can run code."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise document.error([Problem((), f"byte 0x{data[error.start]:02x} is not UTF-8", line)]) from error
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise document.error([Problem((), f"control character {_escaped(error.character)}", line)]) from error
    except MarkedYAMLError as error:
        position = error.problem_mark or error.context_mark
        line = position.line + 1 if position else 1
        tab = "; YAML takes blanks and no tabs to indent" if "'\\t'" in (error.problem or "") else ""
        raise document.error([Problem((), f"not YAML: {error.problem or error.context}{tab}", line)]) from error
    except YAMLError as error:
        raise document.error([Problem((), f"not YAML: {error}")]) from error
    except RecursionError as error:
        raise document.error([Problem((), "nested too deeply")]) from error
    return root


class _TreeBuilder:
    """Converts composed nodes to plain values; refused parts are left out and added to the document's problems."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._value_count = 0

    def value(self, node: Node, path: FieldPath) -> Tree:
        """Return the value of one node; None if it is null or was refused (which adds a problem)."""
        self._value_count += 1
        if self._value_count > MAX_VALUES or len(path) > MAX_DEPTH:
            text = "more values than an inventory can have: are anchors and aliases nested?"
            raise self._document.error([Problem(path[:MAX_DEPTH], text, node.start_mark.line + 1)])
        if str(node.tag) not in _PLAIN_TAGS:
            kind = str(node.tag).replace("tag:yaml.org,2002:", "!!")
            self._add_problem(path, f"the YAML tag {kind} is not allowed; write the plain value")
            return None
        if isinstance(node, ScalarNode):
            return None if node.tag == _NULL else str(node.value)
        if isinstance(node, SequenceNode):
            return self._sequence(node, path)
        assert isinstance(node, MappingNode)  # YAML has no fourth kind
        return self._mapping(node, path)

    def _sequence(self, node: SequenceNode, path: FieldPath) -> list[Tree]:
        items: list[Tree] = []
        for index, item in enumerate(node.value):
            item_path = (*path, index)
            self._document.lines[item_path] = item.start_mark.line + 1
            items.append(self._non_empty_value(item, item_path))
        return items

    def _mapping(self, node: MappingNode, path: FieldPath) -> dict[str, Tree]:
        mapping: dict[str, Tree] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self._add_problem(path, "a key must be a word, not a list or a mapping", line)
                continue
            key = str(key_node.value)
            key_path = (*path, key)
            if key in mapping:
                self._add_problem(key_path, f"given twice, first in line {self._document.lines[key_path]}", line)
                continue
            if key == "<<":
                text = "YAML merge keys are not supported; put common fields under defaults:"
                self._add_problem(key_path, text, line)
                continue
            self._document.lines[key_path] = line
            mapping[key] = self._non_empty_value(value_node, key_path)
        return mapping

    def _non_empty_value(self, node: Node, path: FieldPath) -> Tree:
        """Return the value of one node; a null is a problem unless the section may be empty."""
        problem_count = len(self._document.problems)
        value = self.value(node, path)
        if value is not None or len(self._document.problems) > problem_count:
            return value
        if path[-1] in _MAY_BE_EMPTY:
            return {}
        remedy = 'for an empty text write ""' if "env" in path[:-1] else "write one, or delete the line"
        self._add_problem(path, f"has no value; {remedy}")
        return None

    def _add_problem(self, path: FieldPath, text: str, line: int | None = None) -> None:
        self._document.problems.append(Problem(path, text, line))


def dotted_path(path: FieldPath) -> str:
    """Format a path as `nodes[1].port`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return _printable(text.removeprefix("."))


_HOST_LIST = re.compile(r"[\w.,\[\]-]{1,200}")
_OTHER_WORDS = {
    "cuda": ("gpu", "gpus", "nvidia", "h800", "h100", "h20", "a100", "a800"),
    "gcu": ("enflame", "t20", "s60", "dtu", "tops"),
    "nodes": ("hosts", "machines", "servers", "workers"),
    "devices": ("gpus", "cards", "slots", "ranks", "num_gpus", "gpus_per_node", "nproc_per_node"),
    "address": ("host", "hostname", "ip"),
    "user": ("username", "login"),
    "env": ("environment", "variables"),
    "setup": ("module", "modules", "prolog", "prologue"),
    "time": ("timelimit", "time_limit", "walltime"),
    "infiniband": ("ib", "rdma"),
    "ethernet": ("tcp", "socket"),
}
"""Words of other tools for keys and values of an inventory."""


def did_you_mean(word: str, allowed: Sequence[str]) -> str:
    """Return `did you mean x? ` if one of `allowed` has the same meaning or is similar, else an empty text."""
    close = [name for name, words in _OTHER_WORDS.items() if word.lower() in words and name in allowed]
    close = close or difflib.get_close_matches(word, allowed, n=1)
    return f"did you mean {close[0]}? " if close else ""


def problem_from_pydantic(error: Mapping[str, object], allowed: Sequence[str], *, meant: str = "") -> Problem:
    """
    Convert one entry of pydantic's ValidationError.errors().

    `allowed` are the valid keys beside the one with the error, `meant` a sentence on an unknown one; empty for the most similar.
    """
    location, kind, value = error["loc"], str(error["type"]), error["input"]
    assert isinstance(location, tuple)  # pydantic's documented type
    path = location[:-1] if location and location[-1] == "[key]" else location
    context = error.get("ctx")
    details: Mapping[str, object] = context if isinstance(context, Mapping) else {}
    key = str(path[-1]) if path else ""
    text = _message(kind, key, value=value, details=details, allowed=allowed) or str(error["msg"])
    if kind == "extra_forbidden" and meant:
        text = f"unknown key; {meant}"
    if kind == "model_type" and path[:1] == ("nodes",) and isinstance(value, str) and _HOST_LIST.fullmatch(value):
        text += f": write - {{name: {json.dumps(value) if '[' in value else value}}}"
    return Problem(path, text)


def _message(kind: str, key: str, *, value: object, details: Mapping[str, object], allowed: Sequence[str]) -> str:
    """The message for one of pydantic's kinds of error; empty for a kind that no field here can have."""
    types = {"string_type": "text", "tuple_type": "a list", "dict_type": "a mapping", "model_type": "a mapping"}
    if kind in types:
        return f"must be {types[kind]}, not {displayed(value) if isinstance(value, Mapping | list | tuple) else 'text'}"
    if kind == "extra_forbidden":
        return f"unknown key; {_allowed_hint(key, allowed)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(details["expected"]))
        return f"{displayed(value)} is not known; {_allowed_hint(value if isinstance(value, str) else '', choices)}"
    return "is missing" if kind == "missing" else str(details.get("error", ""))


def _allowed_hint(word: str, allowed: Sequence[str]) -> str:
    return f"{did_you_mean(word, allowed)}allowed: {', '.join(allowed)}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str | int) -> str:
    return f"\\u{ord(character) if isinstance(character, str) else character:04x}"


def resolve_path(file: str, path: str) -> str:
    """Resolve a path in the inventory `file` against the folder of that file; a leading `~` is left for the caller."""
    return path if path.startswith("~") else os.path.normpath(Path(file).absolute().parent / path)
