"""
What a name of a host, a user, a port and a jump host may be, wherever they are written: in an inventory or an ssh_config.

Without pydantic, which takes longer to load than most commands take to run; what else an inventory may hold is in
inventory_fields.py.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping


def shown(value: object) -> str:
    """Write a value for a message: what it is when it is no scalar, shortened when it is long."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    text = text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004  what fits in a line beside the rest
    return text if re.fullmatch(r"[^\s'\"]+", text) and text.isprintable() else repr(text)


def matching(pattern: str, what: str, allowed: str) -> Callable[[str], str]:
    """Make the check that a text is `what`, which it is if all of it is printable and matches."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) and value.isprintable():
            return value
        found = shown(value) if value.isascii() else ascii(value)  # letters of other alphabets may look alike
        raise ValueError(f"{found} is not {what}; allowed: {allowed}")

    return check


def whole_number(what: str, low: int, high: int) -> Callable[[object], int]:
    """Make the check that a value is a whole number within limits."""

    def check(value: object) -> int:
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"{shown(value)} is not {what}; allowed: {low} to {high}")

    return check


_LONGEST_LABEL = 63  # RFC 1035
_host = matching(
    r"[A-Za-z0-9:._%][A-Za-z0-9._:%-]*", "a host name or address", "letters, digits, . _ : % - (- not first)"
)


def check_labels(value: str) -> str:
    """Give a host name back if the resolver takes its parts: ValueError where one is empty or longer than 63 characters."""
    if all(1 <= len(label) <= _LONGEST_LABEL for label in value.removesuffix(".").split(".")):
        return value
    allowed = f"1 to {_LONGEST_LABEL} characters between dots"
    raise ValueError(f"{shown(value)} is not a host name or address; allowed: {allowed}")


def check_address(value: str) -> str:
    """Give it back if it is a host name or an IP address; no value that passes means anything to a shell or to ssh."""
    host, _, zone = _host(value).partition("%")
    if ":" not in value and "%" not in value:
        return check_labels(value)
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        hint = "a port goes into port:" if ":" in value else "% is for the zone of an IPv6 address"
        raise ValueError(f"{shown(value)} is not a host name or address; {hint}") from error
    if value.endswith("%") or "%" in zone:
        raise ValueError(f"{shown(value)} is not an IPv6 address; allowed: one zone, as in fe80::1%eth0")
    return value


check_user = matching(r"[A-Za-z0-9._][A-Za-z0-9._@-]*", "a user name", "letters, digits, . _ @ - (- not first)")
check_port = whole_number("a port", 1, 65535)


def jump_host(text: str) -> tuple[str | None, str, int | None]:
    """
    Read [user@]host[:port], with or without ssh:// before it and brackets around an IPv6 address.

    Raises:
        ValueError: a part is not what it should be.
    """
    user, at, rest = text.strip().removeprefix("ssh://").removesuffix("/").rpartition("@")
    found = re.fullmatch(r"\[([^\]]+)\](?::(.+))?", rest) or re.fullmatch(r"([^:]+)(?::([^:]+))?", rest)
    host, port = found.groups() if found else (rest, None)  # an IPv6 address without brackets has no port
    return check_user(user) if at else None, check_address(host), check_port(port) if port is not None else None
