"""Relaxed JSON, as users write it for DeepSpeed: comments, trailing commas, 5e8 for an integer. No torch here."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Tuple

from trainer.errors import UserError

# Strings first: text in them that looks like a comment is not one.
TOKEN = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
TRAILING = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


def read_relaxed_json(path: str) -> Dict[str, Any]:
    """
    Read the file's mapping.

    Raises:
        UserError: missing, unreadable, invalid, a duplicate key, NaN, or not a mapping.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read deepspeed={path} on the node of rank 0: {reason}") from exc

    def no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise UserError(f"{path}: key {twice[0]!r} is given twice")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise UserError(f"{path}: {name} is not a JSON number")

    def blank(match: re.Match[str]) -> str:
        """A comment as blanks of the same length, so that errors name the right line."""
        return match.group(1) or re.sub(r"[^\n]", " ", match.group())

    try:
        strict = TRAILING.sub(blank, TOKEN.sub(blank, text))
        tree = json.loads(strict, object_pairs_hook=no_duplicates, parse_float=_number, parse_constant=refuse)
    except ValueError as exc:
        raise UserError(f"{path}: not valid JSON (comments and trailing commas may stand in it): {exc}") from exc
    if not isinstance(tree, dict):
        raise UserError(f"{path}: the file must hold a mapping of keys to values, got {type(tree).__name__}")
    return tree


def _number(text: str) -> float:
    """Read 5e8 and 1.0 as integers: DeepSpeed uses them as counts."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is larger than any number here")
    return int(value) if value.is_integer() else value
