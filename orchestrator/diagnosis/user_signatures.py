"""
A user's signatures: sections of `key: value` lines.

    [licence-server]
    text: no licence from * after
    cause: the licence server did not answer
    remedy: lmstat -a
    sample: no licence from lic0 after 30 s

`*` in a text stands for any characters. It is no regular expression, so none can be wrong or take long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.diagnosis.signature import Role, Signature
from orchestrator.failure_class import FailureClass, Retry

LEAST_TEXT = 6
"""Characters of the longest part of a text without `*`: a search for a shorter one finds half of the log."""
MOST_TEXT, MOST_WILDCARDS = 500, 4
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ROLES = {"root": Role.ROOT, "symptom": Role.SYMPTOM, "consequence": Role.CONSEQUENCE, "note": Role.NOTE}
_KINDS = tuple(kind.value for kind in FailureClass if kind is not FailureClass.UNKNOWN)
_CHOICES = {"role": tuple(_ROLES), "kind": _KINDS, "retry": tuple(retry.value for retry in Retry)}
_REQUIRED, _OPTIONAL, _REPEATED = ("text", "cause", "remedy", "sample"), ("near", *_CHOICES), ("remedy", "sample")


class SignatureError(ValueError):
    """A file of signatures is wrong; the message has the line."""


@dataclass
class _Section:
    """The lines of one signature."""

    name: str
    line: int
    values: dict[str, list[str]] = field(default_factory=dict)

    def value(self, key: str) -> str:
        return self.values.get(key, [""])[0]


def read_signatures(text: str, file: str, known: Mapping[str, Signature]) -> dict[str, Signature]:
    """The signatures of a file by id; SignatureError if it is wrong."""
    found: dict[str, Signature] = {}
    for section in _sections(text, file):
        position = f"{file}:{section.line}: [{section.name}]"
        if section.name in known or section.name in found:
            raise SignatureError(f"{position} is the id of another signature; choose a new one")
        found[section.name] = _signature(section, position, file)
    return found


def _sections(text: str, file: str) -> Iterator[_Section]:
    section: _Section | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            if section is not None:
                yield section
            if not line.endswith("]") or _ID.fullmatch(line[1:-1]) is None:
                raise SignatureError(f"{file}:{number}: {line!r} is no id in brackets, as in [licence-server]")
            section = _Section(line[1:-1], number)
            continue
        if section is None:
            raise SignatureError(f"{file}:{number}: {line!r} is not `key: value` below an [id]")
        _add(section, line, f"{file}:{number}")
    if section is not None:
        yield section


def _add(section: _Section, line: str, position: str) -> None:
    key, colon, value = (part.strip() for part in line.partition(":"))
    if not colon or not value:
        raise SignatureError(f"{position}: {line!r} is not `key: value` below an [id]")
    if key not in (*_REQUIRED, *_OPTIONAL):
        raise SignatureError(f"{position}: {key}: no such key; the keys are {', '.join((*_REQUIRED, *_OPTIONAL))}")
    if key in section.values and key not in _REPEATED:
        raise SignatureError(f"{position}: {key}: is in [{section.name}] twice")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise SignatureError(f"{position}: {key}: {value!r} is none of {', '.join(_CHOICES[key])}")
    section.values.setdefault(key, []).append(value)


def _pattern(parts: Sequence[str]) -> str:
    """
    A regular expression for lines that contain the parts in this order.

    Each part is looked for once, after the one before it: a lookahead is not tried again, so that the time is linear.
    """
    return r"\A" + "".join(rf"(?=(.*?{re.escape(part)}))\{number}" for number, part in enumerate(parts, 1))


def _signature(section: _Section, position: str, file: str) -> Signature:
    missing = [key for key in _REQUIRED if key not in section.values]
    if missing:
        raise SignatureError(f"{position} has no {missing[0]}: line")
    text = section.value("text")
    parts = text.split("*")
    literal = max(parts, key=len).strip()
    if len(literal) < LEAST_TEXT:
        fault = f"has no {LEAST_TEXT} characters in a row without `*`, so it would be found everywhere"
        raise SignatureError(f"{position} text: {fault}")
    if len(text) > MOST_TEXT or len(parts) > MOST_WILDCARDS + 1:
        fault = f"is longer than {MOST_TEXT} characters, or has more than {MOST_WILDCARDS} `*`, which is slow"
        raise SignatureError(f"{position} text: {fault}")
    retry = section.value("retry")
    row = Signature(
        id=section.name,
        pattern=_pattern(parts),
        role=_ROLES[section.value("role") or "root"],
        kind=FailureClass(section.value("kind") or "code"),
        cause=section.value("cause"),
        remedy=tuple(section.values["remedy"]),
        samples=tuple(section.values["sample"]),
        near_miss=section.value("near"),
        source=file,
        literals=(literal,),
        retries=Retry(retry) if retry else None,
    )
    for sample in row.samples:
        if row.expression.search(sample) is None:
            raise SignatureError(f"{position} text: is not found in the sample {sample!r}")
    if row.near_miss and row.expression.search(row.near_miss):
        raise SignatureError(f"{position} text: is found in {row.near_miss!r}, which is given as near:")
    return row
