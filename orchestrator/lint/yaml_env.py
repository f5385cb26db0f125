"""
Read variables and commands from YAML that is no inventory: `env:` and `environment:` as a mapping or list, `run:`, `script:` and the like.

Workflows, Compose files, manifests of Kubernetes, SkyPilot and Ray are of this kind. Nothing is constructed, so that no tag can run code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from orchestrator.lint.assignment import Assignment, Script, Unread, Word, hole, known, split_assignment
from orchestrator.lint.embedded import placed, texts_of_command
from orchestrator.lint.shell import read_shell

MAX_DEPTH = 60
_ENV = frozenset("env environment envs env_vars envvars environ environment_variables envvariables".split())
_SHELL = frozenset(
    "run script scripts before_script after_script setup setup_commands commands cmd prerun_commands".split()
)
_WORDS = frozenset(("command", "args", "entrypoint"))
_TEMPLATE = re.compile(r"\$?\{\{.*?\}\}|\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z_]\w*", re.DOTALL)
_TEXT = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_TYPED = "is no text: Kubernetes refuses a number or truth value here, so quote it"


def read_yaml(text: str, file: str, *, first_line: int = 1) -> tuple[Script, ...]:
    """One script for each `env:` and each text of shell."""
    reader = _Reader(file)
    line = first_line
    for part in re.split(r"^(?=---(?:\s|$))", text, flags=re.MULTILINE):
        reader.offset = line - 1
        try:
            root = YAML(typ="safe", pure=True).compose(part)
        except (YAMLError, RecursionError, ValueError) as error:
            position = getattr(error, "problem_mark", None)
            unread = Unread(line + (position.line if position is not None else 0), language="YAML")
            reader.scripts.append(Script((), unread=(unread,)))
            root = None
        if isinstance(root, MappingNode):
            reader.is_kubernetes = {"apiVersion", "kind"} <= {str(key.value) for key, _ in root.value}
        reader.walk(root, 0)
        line += part.count("\n")
    return tuple(reader.scripts)


@dataclass
class _Reader:
    file: str
    offset: int = 0
    is_kubernetes: bool = False
    scripts: list[Script] = field(default_factory=list)

    def walk(self, node: Node | None, depth: int) -> None:
        if depth > MAX_DEPTH:
            return
        if isinstance(node, SequenceNode):
            for item in node.value:
                self.walk(item, depth + 1)
        elif isinstance(node, MappingNode):
            for key, value in node.value:
                name = str(key.value).replace("-", "_").lower() if isinstance(key, ScalarNode) else ""
                if name in _ENV and (assignments := list(self._environment(value))):
                    self.scripts.append(Script(tuple(assignments)))
                elif name in _SHELL:
                    self._shell(value)
                elif name in _WORDS:
                    self._words(value)
                self.walk(value, depth + 1)

    def _line(self, node: Node) -> int:
        return int(node.start_mark.line) + 1 + self.offset

    def _environment(self, node: Node) -> Iterator[Assignment]:
        """The variables of a mapping, of a list of `NAME=VALUE`, or of a list of mappings with `name` and `value`."""
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if isinstance(key, ScalarNode) and isinstance(value, ScalarNode) and str(value.tag) != _NULL:
                    yield self._assignment(str(key.value), value, key)
        for item in node.value if isinstance(node, SequenceNode) else ():
            if isinstance(item, ScalarNode):
                name, value = split_assignment(str(item.value))
                if name:
                    pattern = _pattern(value)
                    yield Assignment(name, known(pattern), self.file, self._line(item), pattern=pattern)
            elif isinstance(item, MappingNode):
                fields = {str(key.value): value for key, value in item.value if isinstance(key, ScalarNode)}
                named, given = fields.get("name"), fields.get("value")
                if isinstance(named, ScalarNode) and isinstance(given, ScalarNode):
                    found = self._assignment(str(named.value), given, named)
                    is_typed = self.is_kubernetes and str(given.tag) != _TEXT and known(found.pattern) is not None
                    yield replace(found, fault=_TYPED) if is_typed else found

    def _assignment(self, name: str, value: ScalarNode, key: Node) -> Assignment:
        pattern = _pattern(str(value.value))
        return Assignment(name, known(pattern), self.file, self._line(key), pattern=pattern)

    def _shell(self, node: Node) -> None:
        lines = _texts(node)
        if not lines or not all(isinstance(item, ScalarNode) for item in lines):
            return
        first = self._line(lines[0]) + _is_block(lines[0])
        text = "\n".join(_TEMPLATE_ONLY.sub("_", str(item.value)) for item in lines)
        self.scripts.append(placed(read_shell(text, self.file, first_line=first), None))

    def _words(self, node: Node) -> None:
        """A command as a list of words, or as one text."""
        if isinstance(node, ScalarNode):
            self._shell(node)
            return
        items = _texts(node)
        words = tuple(
            Word(known(pattern), self._line(item), 0, 0, pattern)
            for item in items
            if isinstance(item, ScalarNode)
            for pattern in [_pattern(str(item.value))]
        )
        if not words:
            return
        texts = list(texts_of_command(words))
        self.scripts.append(Script((), (words,)))
        is_block = any(map(_is_block, items[-1:]))
        for word in texts:
            values = [str(item.value) for item in items if self._line(item) == word.line]
            source = next((value for value in values if _pattern(value) == word.pattern), word.pattern)
            script = read_shell(_TEMPLATE_ONLY.sub("_", source), self.file, first_line=word.line + is_block)
            self.scripts.append(placed(script, None))


_TEMPLATE_ONLY = re.compile(r"\$?\{\{.*?\}\}", re.DOTALL)


def _is_block(node: Node) -> bool:
    """True for `|` and `>`, whose text begins on the next line."""
    return isinstance(node, ScalarNode) and node.style in ("|", ">")


def _pattern(value: str) -> str:
    return _TEMPLATE.sub(hole(), value)


def _texts(node: Node) -> Sequence[Node]:
    return node.value if isinstance(node, SequenceNode) else [node] if isinstance(node, ScalarNode) else []
