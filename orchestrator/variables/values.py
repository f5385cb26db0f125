"""
The texts that a variable accepts, by the code that parses it: NCCL's strtoll, torch's stoi, lists of words, levels of paths.

Every kind has `text` for the documentation, and `fault`, which returns what is wrong with a value and a better one.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Protocol

from orchestrator.portable.findings import Severity

_STRTOLL = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that its reader refuses, ignores or takes for another one; `better` None: no better value is known."""

    severity: Severity
    text: str
    better: str | None = None


class Kind(Protocol):
    """The values of a variable."""

    @property
    def text(self) -> str:
        """The accepted values, for a table."""

    def fault(self, value: str) -> Fault | None:
        """Return the fault of a value; None if its reader takes it as it is written."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Text that the linter does not check further."""

    text: str = "text"

    def fault(self, value: str) -> Fault | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class NcclInteger:
    """NCCL's own integers: `strtoll(value, 0, 0)`, which takes any text for a number."""

    low: int = -(1 << 63)
    high: int = (1 << 63) - 1
    choices: tuple[int, ...] = ()
    unit: str = ""

    @property
    def text(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        unit = f" {self.unit}" if self.unit else ""
        if self.high == _INT64 - 1:
            return f"integer{unit}" if self.low < 0 else f"integer{unit} from {self.low}"
        return f"{self.low} to {self.high}{unit}"

    def fault(self, value: str) -> Fault | None:
        """Compare the number that NCCL reads with the text."""
        if not value:
            return Fault(Severity.INFO, "is empty, so NCCL uses its default", "")
        number, rest = strtoll(value)
        if number is None:
            return Fault(Severity.FAIL, "is not a number: NCCL reads it as 0", self._number_for(value))
        if rest.strip():
            text = f"NCCL reads it as {number}: it ignores everything after the digits"
            return Fault(Severity.FAIL, text, self._with_unit(number, rest))
        digits = value.strip().lstrip("+-")
        # strtoll reads it as octal, and a person reads another number
        if len(digits) > 1 and digits[0] == "0" and digits.isdigit() and digits.strip("0") != "":
            plain = value.strip().lstrip("+-0")
            better = plain if self._accepts(int(plain[:40])) else None
            return Fault(Severity.WARN, f"a leading 0 makes it octal: NCCL reads it as {number}", better)
        return self._range_fault(number)

    def _range_fault(self, number: int) -> Fault | None:
        if not -_INT64 <= number < _INT64:
            return Fault(Severity.FAIL, "does not fit 64 bits: NCCL uses its default")
        if not self._accepts(number):
            of = "one of" if self.choices else "in the range"
            return Fault(Severity.FAIL, f"is not {of} {self.text}")
        return None

    def _number_for(self, value: str) -> str | None:
        """The number that a word such as `true` stands for."""
        word = value.strip().lower()
        number = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}.get(word)
        return str(number) if number is not None and self._accepts(number) else None

    def _with_unit(self, number: int, rest: str) -> str | None:
        """The number of bytes for `8M`, `8MB` or `8MiB`, if it is accepted."""
        factor = _UNITS.get(rest.strip().lower().removesuffix("b").removesuffix("i"))
        return str(number * factor) if factor is not None and self._accepts(number * factor) else None

    def _accepts(self, number: int) -> bool:
        return number in self.choices if self.choices else self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer that torch or Python parses: other text is an error at the start. torch's stoi ignores what follows the digits."""

    low: int = 0
    high: int | None = None
    unit: str = ""
    reader: str = "torch"

    @property
    def text(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"integer{unit} from {self.low}" if self.high is None else f"{self.low} to {self.high}{unit}"

    def fault(self, value: str) -> Fault | None:
        """Refuse what is not a decimal number in the range."""
        match = re.match(r"\s*([+-]?\d{1,30})", value)
        if match is None or (match.end() != len(value) and self.reader != "torch"):
            return Fault(Severity.FAIL, f"is not an integer: {self.reader} stops with an error")
        number = int(match[1])
        if match.end() != len(value):
            return Fault(Severity.WARN, f"torch reads it as {number}: it ignores what follows the digits")
        if number < self.low or (self.high is not None and number > self.high):
            return Fault(Severity.FAIL, f"is not in the range {self.text}")
        return None


@dataclass(frozen=True, slots=True)
class TorchBool:
    """A flag of ProcessGroupNCCL: y, yes, 1, t, true or n, no, 0, f, false, in any case; anything else is an error."""

    text: str = "0 or 1 (also yes, no, true, false)"

    def fault(self, value: str) -> Fault | None:
        if value.lower() in {"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"}:
            return None
        better = {"on": "1", "off": "0"}.get(value.lower())
        return Fault(Severity.FAIL, "is neither 0 nor 1: torch stops with an error", better)


@dataclass(frozen=True, slots=True)
class Word:
    """One of some words; `consequence` is what the reader does with any other text."""

    choices: tuple[str, ...]
    consequence: str
    case_sensitive: bool = False
    severity: Severity = Severity.FAIL

    @property
    def text(self) -> str:
        return ", ".join(self.choices) + (" (in this case)" if self.case_sensitive else "")

    def fault(self, value: str) -> Fault | None:
        word = value if self.case_sensitive else value.strip().upper()
        if word in {choice if self.case_sensitive else choice.upper() for choice in self.choices}:
            return None
        text = f"is not one of {', '.join(self.choices)}: {self.consequence}"
        return Fault(self.severity, text, closest(value, self.choices))


@dataclass(frozen=True, slots=True)
class WordList:
    """Words separated by commas, in any case; a leading `^` excludes them."""

    choices: tuple[str, ...]
    consequence: str

    @property
    def text(self) -> str:
        return f"list of {', '.join(self.choices)}; `^` excludes"

    def fault(self, value: str) -> Fault | None:
        """Refuse a list with any other word."""
        known = {choice.upper() for choice in self.choices}
        wrong = [
            word for word in value.removeprefix("^").split(",") if word.strip().removeprefix("^").upper() not in known
        ]
        if not wrong:
            return None
        return Fault(Severity.WARN, f"{wrong[0]!r} is not one of {', '.join(self.choices)}: {self.consequence}")


@dataclass(frozen=True, slots=True)
class Selection:
    """NCCL_ALGO and NCCL_PROTO: `[FUNCTION:][^]WORD,…;…`."""

    choices: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"list of {', '.join(self.choices)}; `^` excludes; from 2.24 on also by function: `allreduce:ring;broadcast:tree`"

    def fault(self, value: str) -> Fault | None:
        known = {choice.lower() for choice in self.choices}
        for part in value.split(";"):
            for word in part.rpartition(":")[2].strip().removeprefix("^").split(","):
                if word.strip().lower() not in known:
                    close = closest(word.strip(), self.choices)
                    better = value.replace(word.strip(), close) if close else None
                    text = f"{word.strip()!r} is not one of {', '.join(self.choices)}: NCCL from 2.24 on stops with an error, older ones ignore it"
                    return Fault(Severity.FAIL, text, better)
        return None


@dataclass(frozen=True, slots=True)
class Adapters:
    """NCCL_IB_HCA: a list of adapters, each of which is named once."""

    text: str = "[^][=]HCA[:PORT[:RAIL[:PLANE]]],…; a name is a prefix unless `=` comes first"

    def fault(self, value: str) -> Fault | None:
        names = value.lstrip("^=").split(",")
        twice = [name for index, name in enumerate(names) if name in names[:index]]
        if not twice:
            return None
        better = value[: len(value) - len(value.lstrip("^="))] + ",".join(dict.fromkeys(names))
        return Fault(Severity.WARN, f"names {twice[0]} twice: is another adapter meant?", better)


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """PYTORCH_CUDA_ALLOC_CONF: `NAME:VALUE,…`, where torch knows the names; flags are True or False, in this case."""

    flags: frozenset[str]
    settings: frozenset[str]
    text: str = "list of NAME:VALUE, as in max_split_size_mb:128,expandable_segments:True"

    def fault(self, value: str) -> Fault | None:
        """Refuse unknown names, `=` instead of `:`, and flags in another case."""
        known = tuple(sorted(self.flags | self.settings))
        for option in re.split(r",(?![^\[]*\])", value) if value.strip() else ():
            name, colon, setting = option.strip().partition(":")
            if not colon:
                better = value.replace("=", ":") if "=" in option else None
                return Fault(Severity.FAIL, f"{option.strip()!r} is no NAME:VALUE: torch stops with an error", better)
            if name.strip() not in known:
                close = closest(name.strip(), known)
                better = value.replace(name, close) if close else None
                return Fault(Severity.FAIL, f"{name.strip()!r} is no option: torch stops with an error", better)
            if name.strip() in self.flags and setting.strip() not in ("True", "False"):
                word = {"true": "True", "1": "True", "false": "False", "0": "False"}.get(setting.strip().lower())
                better = value.replace(option, f"{name}:{word}") if word else None
                return Fault(
                    Severity.FAIL, f"{name.strip()} is True or False, in this case: torch stops with an error", better
                )
        return None


@dataclass(frozen=True, slots=True)
class PathLevel:
    """A distance in NCCL's topology: a word in capitals, or a number of the time before words (`strtol`)."""

    choices: tuple[str, ...]
    numbers: tuple[str, ...] = ("LOC", "PIX", "PXB", "PHB", "SYS")

    @property
    def text(self) -> str:
        return f"{', '.join(self.choices)} (in capitals)"

    def fault(self, value: str) -> Fault | None:
        """Translate a number, refuse an unknown word."""
        if value in self.choices:
            return None
        if value[:1].isascii() and value[:1].isdigit():
            word = self.numbers[min(int(strtoll(value)[0] or 0), len(self.numbers) - 1)]
            return Fault(Severity.WARN, f"is a number of old versions, which NCCL reads as {word}", word)
        better = value.strip().upper()
        text = f"is not one of {', '.join(self.choices)}: NCCL ignores it without a message"
        return Fault(Severity.FAIL, text, better if better in self.choices else closest(better, self.choices))


def strtoll(value: str) -> tuple[int | None, str]:
    """Return the number that C's `strtoll(value, 0, 0)` reads, and the rest of the text; None if there are no digits."""
    match = _STRTOLL.match(value)
    if match is None:
        return None, value
    digits, end = match[2], match.end()
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits[0] == "0" and len(digits) > 1:
        octal = re.match(r"[0-7]+", digits)
        assert octal is not None  # it begins with 0
        number, end = int(octal[0], 8), match.start(2) + octal.end()
    else:
        number = int(digits[:40])  # 64 bits end long before
    return (-number if match[1] == "-" else number), value[end:]


def closest(word: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that is nearly `word`, if there is one."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=0.75)
    return by_lower[close[0]] if close else None
