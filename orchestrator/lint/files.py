"""Read files of `NAME=VALUE` lines: environment files, and nccl.conf by NCCL's own parser."""

from __future__ import annotations

import re

from orchestrator.lint.assignment import Assignment

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)")
_QUOTES = ("'", '"')
_CONF_VALUE = 1023  # bytes that NCCL keeps


def read_env_file(text: str, file: str) -> tuple[Assignment, ...]:
    """Read `KEY=VALUE` and `export KEY=VALUE` lines; quotes around a value are removed, other lines are skipped."""
    found = []
    offset = 0
    for number, line in enumerate(text.split("\n"), start=1):
        match = _LINE.match(line)
        if match is not None:
            name, value = match[1], match[2].rstrip()
            end = offset + match.start(2) + len(value)
            if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
                value = value[1:-1]
            elif " #" in value:
                value = value.partition(" #")[0].rstrip()
                end = offset + match.start(2) + len(value)
            found.append(Assignment(name, value, file, number, start=offset + match.start(1), end=end))
        offset += len(line) + 1
    return tuple(found)


def read_nccl_conf(text: str, file: str) -> tuple[Assignment, ...]:
    """Read lines as NCCL does: everything before the first `=` is the name, everything after it the value."""
    found = []
    offset = 0
    for number, line in enumerate(text.split("\n"), start=1):
        source = line.removesuffix("\r")
        if source.strip() and not source.startswith("#"):
            found.append(_conf_line(source, file, number, offset))
        offset += len(line) + 1
    return tuple(found)


def _conf_line(line: str, file: str, number: int, offset: int) -> Assignment:
    written, equals, value = line.partition("=")
    name = written.strip().removeprefix("export ").strip()
    plain = re.split(r"\s#", value, maxsplit=1)[0].strip()
    plain = plain[1:-1] if len(plain) > 1 and plain[0] in _QUOTES and plain[-1] == plain[0] else plain
    fault, replacement = "", f"{name}={plain}"
    if not equals:
        fault, replacement = "has no `=`, so NCCL skips the line", ""
    elif name != written:
        fault = f"NCCL takes everything before `=` for the name, here {written!r}"
    elif plain != value:
        fault = "quotes, comments and blanks are part of the value in nccl.conf"
    elif len(value.encode("utf-8", "replace")) > _CONF_VALUE:
        fault = f"NCCL cuts the value after {_CONF_VALUE} bytes"
    end = offset + len(line)
    if fault:
        return Assignment(name, plain, file, number, (), offset, end, fault, replacement)
    return Assignment(name, value, file, number, start=offset, end=end)
