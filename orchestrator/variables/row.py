"""A row of the table: a variable, the values it accepts, and verdicts on values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from orchestrator.portable.findings import Severity
from orchestrator.variables.values import Kind

REMOVE = ""
"""The better value of a variable that should not be set."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    One judgement on values of a variable that its reader accepts.

    `when` are conditions (conditions.py) that must all hold. Values: `value` is a regular expression for the whole text, `above` and
    `below` are bounds of the number; with none of them, every value. `better` is a value, REMOVE, or None if the site must decide; `name`
    is the name that the variable should have.
    """

    severity: Severity
    reason: str
    when: tuple[str, ...] = ()
    value: str = ""
    above: int | None = None
    below: int | None = None
    better: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """
    One variable.

    `library` is its reader, whose versions `since`, `until` and the defaults mean: `since` is the first version that reads it,
    `until` the first that does not. `default` is a text, or the text by the first version that has it, "" for the oldest.
    A value equal to a default is reported as superfluous. `is_debug`: the documentation advises against keeping it set.
    """

    name: str
    library: str
    kind: Kind
    text: str
    default: str | dict[str, str] = ""
    since: str = ""
    until: str = ""
    is_debug: bool = False
    verdicts: tuple[Verdict, ...] = ()
    source: str = ""
    undecided: str = ""
    """The remark that replaces several verdicts whose conditions are all unknown."""

    def defaults(self) -> dict[str, str]:
        """The default by first version, the oldest first."""
        return self.default if isinstance(self.default, dict) else {"": self.default} if self.default else {}


def verdict(
    severity: Severity,
    reason: str,
    *when: str,
    value: str = "",
    above: int | None = None,
    below: int | None = None,
    better: str | None = None,
) -> Verdict:
    """A verdict that applies where all conditions of `when` hold."""
    return Verdict(severity, reason, when, value, above, below, better)


fail = partial(verdict, Severity.FAIL)
warn = partial(verdict, Severity.WARN)
info = partial(verdict, Severity.INFO)
