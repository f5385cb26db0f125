"""The schema of one key: parse the text of a shell word, check the value from a file, describe the allowed values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import NoReturn

from trainer.errors import UserError
from trainer.values import JsonValue

NUMBERS = ("betas", "weights")  # kinds that are tuples of float


@dataclass(frozen=True)
class KeySchema:
    """
    The kind of a key's value, and its limits.

    kind: int, float, flag (with `choices`: or one of these words, with `low`: or a whole number from it on), text, texts (list of text), betas (two numbers in [0, 1)), weights (list of numbers above 0) or value (anything that JSON has).
    above: `low` itself is not allowed.
    """

    kind: str
    low: float = 0
    above: bool = False
    choices: tuple[str, ...] = ()
    optional: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values in words, for error messages."""
        if self.kind == "flag":
            return ", ".join(
                ("true", "false", *self.choices, *([f"a whole number >= {self.low:g}"] if self.low else []))
            )
        if self.choices:
            return ("any of " if self.kind == "texts" else "") + ", ".join(self.choices)
        words = {
            "int": f"a whole number >= {self.low:g}",
            "float": f"a number {'>' if self.above else '>='} {self.low:g}",
            "text": "text, not empty",
            "texts": 'names separated by commas, or a list ["a", "b"]',
            "betas": "two numbers in [0, 1), such as 0.9,0.95",
            "weights": "numbers > 0 separated by commas, such as 7,3",
            "value": "text, a number, true, false, null, a list or a mapping, as JSON writes them",
        }
        return words[self.kind]

    def parse(self, key: str, text: str) -> JsonValue:  # the kind decides the type
        """The value of `key=text` as typed in a shell."""
        if self.kind in ("int", "float"):
            try:
                return self.check(key, int(text) if self.kind == "int" else float(text))
            except ValueError:
                self._refuse(key, text)
        if self.kind == "flag":
            number = int(text) if self.low and text.isdecimal() else text
            return self.check(key, {"true": True, "false": False}.get(text, number))
        if self.kind == "value":
            try:
                return json.loads(text)
            except ValueError:
                return text
        if self.kind == "text":
            return self.check(key, text)
        return self.check(key, _parse_list(text, numbers=self.kind in NUMBERS), shown=text)

    def check(self, key: str, value: JsonValue, *, source: str = "", shown: JsonValue = None) -> JsonValue:
        """
        The value itself, in the type the configuration keeps.
        Raises UserError: names the key, what is allowed and the value; `shown` is the user's text if it differs.
        """
        shown = value if shown is None else shown
        if value is None and self.optional:
            return None
        is_valid = {
            "int": type(value) is int and value >= self.low,
            "float": _is_number(value) and (value > self.low or (value == self.low and not self.above)),
            "flag": isinstance(value, bool) or value in self.choices or self._is_number_of_flag(value),
            "text": self._is_text(value),
            "value": True,
            "texts": isinstance(value, (list, tuple)) and all(self._is_text(item) for item in value),
            "betas": isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_beta, value)),  # noqa: PLR2004
            "weights": isinstance(value, (list, tuple)) and all(_is_number(item) and item > 0 for item in value),
        }
        if not is_valid[self.kind]:
            self._refuse(key, shown, source=source)
        if self.kind == "float":
            return float(value)
        if self.kind in NUMBERS:
            return tuple(float(item) for item in value)
        return tuple(value) if self.kind == "texts" else value

    def _is_number_of_flag(self, value: object) -> bool:
        return bool(self.low) and type(value) is int and value >= self.low

    def _is_text(self, value: object) -> bool:
        return isinstance(value, str) and bool(value) and (not self.choices or value in self.choices)

    def _refuse(self, key: str, value: object, *, source: str = "") -> NoReturn:
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        if source and isinstance(value, str) and self.kind in ("int", "float", "flag"):
            shown = f"{json.dumps(value)} is text"  # PyYAML, too, reads 1e-4 as text
        raise UserError(f"{f'{source}: ' if source else ''}{key}={shown}: allowed: {self.allowed}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_beta(value: object) -> bool:
    return _is_number(value) and 0 <= value < 1  # type: ignore[operator]  # _is_number narrows


def _parse_list(text: str, *, numbers: bool) -> JsonValue:  # a list, or whatever JSON the user typed
    """`a,b` or a JSON list; other text is returned unchanged, for check() to refuse."""
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    parts = [part.strip() for part in text.split(",")] if text else []
    if not numbers:
        return parts
    try:
        return [float(part) for part in parts]
    except ValueError:
        return text
