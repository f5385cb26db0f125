"""A row of the catalogue: the text of a failure, its cause and its remedy."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Literal

from orchestrator.diagnosis.change import Change
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.node.search import compiled

Log = Literal["rank", "batch", "kernel", "event"]
"""Output of a rank or a launcher, log of a batch script, log of the kernel, events of the agent."""
PROGRAM: tuple[Log, ...] = ("rank", "batch", "event")
KERNEL: tuple[Log, ...] = ("rank", "batch", "event", "kernel")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
ALTERNATIVE = " || "
"""Separates texts of a cause or a remedy; the first one whose values are known is used."""
MORE_DEBUG = "launch again with --debug: NCCL then prints the reason in a line with `NCCL WARN` before this one"
"""A remedy that is left out where the log has such a line."""
_LOGIN = " (orch ssh {node})"
_NUMBERS = re.compile(r"[\d, ]+")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]|()]")
_ESCAPE = re.compile(r"\\([^\w\s])")


class Role(Enum):
    """The weight of a signature; the first of these that is present is the cause."""

    VERDICT = "verdict"
    """A verdict of orch about the run; it wins over the texts of programs."""
    ROOT = "root"
    """Names a cause."""
    ERROR = "error"
    """An exception of the program that no other signature knows: its own text is the cause."""
    SYMPTOM = "symptom"
    """The run fails here, and the cause must be looked for, as after a timeout or a SIGKILL."""
    CONSEQUENCE = "consequence"
    """Follows from a failure elsewhere; never the cause."""
    UNKNOWN = "unknown"
    """A line that reports an error; shown only where nothing is known."""
    NOTE = "note"
    """Worth knowing, and not why a run ends."""


@dataclass(frozen=True)
class Signature:
    """
    One known text of a failure.

    Named groups of `pattern` can be used in `cause` and `remedy` as {name}; `name_2`, `name_3` are the same value in other branches. `rank` and `node`
    name where it happened, `group_rank` the rank within a process group, `culprit` the rank that caused it, `first_rank` and `first_node` the rank that failed first by the launcher's report.
    """

    id: str
    pattern: str
    """A regular expression for a part of one line, or of `lines` lines joined by newlines."""
    role: Role
    kind: FailureClass
    cause: str
    """One sentence."""
    remedy: tuple[str, ...]
    """Next steps, commands first."""
    samples: tuple[str, ...]
    near_miss: str
    """A similar line that is not this failure."""
    source: str
    """The program and version, or the public report, that the text is from."""
    literals: tuple[str, ...] = ()
    """Every match contains one of these; derived from the pattern if that is plain text."""
    logs: tuple[Log, ...] = PROGRAM
    follows: tuple[str, ...] = ()
    """Signatures whose consequence this is, where they are present."""
    explains: tuple[str, ...] = ()
    """If not empty, it can be the cause only where one of these is present."""
    lines: int = 1
    retries: Retry | None = None
    """If another attempt can help, where that differs from its kind."""
    change: Change | None = None
    """The part of the remedy that orch can make itself."""
    is_general: bool = False
    """Several causes have this text, so that it alone makes none certain."""

    @property
    def retry(self) -> Retry:
        return self.retries or self.kind.retry

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return self.literals or (plain_text(self.pattern),)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return compiled(self.pattern)


def plain_text(pattern: str) -> str:
    """The text that a regular expression matches; ValueError if it has special characters."""
    if _SPECIAL.search(_ESCAPE.sub("", pattern)):
        raise ValueError(f"the pattern {pattern!r} is not plain text, so it needs literals")
    return _ESCAPE.sub(r"\1", pattern)


def filled(text: str, values: Mapping[str, str | None]) -> str:
    """The first alternative of a cause of which all {names} are known, with their values; without one, the last with <name>."""
    alternatives = text.split(ALTERNATIVE)
    known = {"node": "the node", **{name: value for name, value in values.items() if value}}
    chosen = next((each for each in alternatives if _names(each) <= known.keys()), alternatives[-1])
    return _PLACEHOLDER.sub(lambda found: known.get(found[1]) or f"<{found[1]}>", chosen)


def filled_remedy(text: str, values: Mapping[str, str | None]) -> str | None:
    """
    The first alternative of a remedy of which all {names} are known, with a shell word for each; None without one.

    Values are from logs, and remedies are pasted into shells. An unknown node is "the node", without a command for it.
    """
    words = {name: word for name, value in values.items() if value and (word := _shell_word(value))}
    if "node" not in words:
        text, words["node"] = text.replace(_LOGIN, ""), "the node"
    for alternative in text.split(ALTERNATIVE):
        if _names(alternative) <= words.keys():
            return _PLACEHOLDER.sub(lambda found: words[found[1]], alternative)
    return None


def _names(text: str) -> set[str]:
    return set(_PLACEHOLDER.findall(text))


def _shell_word(value: str) -> str | None:
    """The value, quoted where a shell needs it; None for a text that a command would take for an option."""
    if _NUMBERS.fullmatch(value):
        return value
    if _QUOTED.fullmatch(value):  # as Python prints a path
        try:
            value = str(ast.literal_eval(value))
        except (SyntaxError, ValueError):
            return None
    return None if value.startswith("-") else shlex.quote(value)


def signature(
    role: Role,
    name: str,
    pattern: str,
    kind: str,
    cause: str,
    *remedy: str,
    sample: str | tuple[str, ...],
    near: str,
    source: str,
    literal: str | tuple[str, ...] = (),
    logs: tuple[Log, ...] = PROGRAM,
    follows: tuple[str, ...] = (),
    explains: tuple[str, ...] = (),
    lines: int = 1,
    retry: str | None = None,
    change: Change | None = None,
    general: bool = False,
) -> Signature:
    samples = (sample,) if isinstance(sample, str) else sample
    literals = (literal,) if isinstance(literal, str) else literal
    return Signature(
        name,
        pattern,
        role,
        FailureClass(kind),
        cause,
        remedy,
        samples,
        near,
        source,
        literals,
        logs,
        follows,
        explains,
        lines,
        Retry(retry) if retry else None,
        change,
        general,
    )


verdict = partial(signature, Role.VERDICT)
root = partial(signature, Role.ROOT)
likely = partial(signature, Role.ROOT, general=True)
"""A root whose text several causes have."""
error = partial(signature, Role.ERROR)
symptom = partial(signature, Role.SYMPTOM)
consequence = partial(signature, Role.CONSEQUENCE)
note = partial(signature, Role.NOTE)
