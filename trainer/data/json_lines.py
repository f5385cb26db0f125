"""Lines of JSON, and the reasons why a line is none. No torch here."""

from __future__ import annotations

import json
from typing import Any, Mapping

from trainer.values import JsonValue


def parse_line(line: bytes) -> JsonValue:
    """Raises ValueError: it is no JSON in UTF-8, or has texts that UTF-8 cannot have."""
    # Some editors begin a file with a byte order mark. The end of the line would be column 1 of the next one.
    value = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
    if b"\\u" in line:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def reason_of(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"not valid JSON: {error.msg} at {line}column {error.colno}"
    if isinstance(error, UnicodeEncodeError):
        return f"has \\u{ord(error.object[error.start]):04x}, half of a character"
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def keys_of(value: Mapping[str, Any]) -> str:
    return f"its keys are {', '.join(list(value)[:6])}" if value else "it is empty"


def kind_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", dict: "mapping"}
    return names[type(value)]
