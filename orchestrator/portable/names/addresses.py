"""
Checks of host names, user names, ports and jump hosts, for inventories and ssh_config alike.

Without pydantic, which takes longer to import than most commands take to run; the other fields of an inventory are in
inventory/fields.py.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

MOST_SHOWN = 60  # characters of a value; leaves space on the line for the message


def displayed(value: object) -> str:
    """Format a value for a message: the type of a collection, a long text shortened."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    text = text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
    return text if re.fullmatch(r"[^\s'\"]+", text) and text.isprintable() else repr(text)


def pattern_check(pattern: str, noun: str, allowed: str) -> Callable[[str], str]:
    """Build a check that returns a text if all of it is printable and matches; its ValueError names `noun` and `allowed`."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) and value.isprintable():
            return value
        found = displayed(value) if value.isascii() else ascii(value)  # letters of other alphabets may look alike
        raise ValueError(f"{found} is not {noun}; allowed: {allowed}")

    return check


def integer_check(noun: str, low: int, high: int) -> Callable[[object], int]:
    """Build a check that returns a value as an integer from `low` to `high`; its ValueError names `noun`."""

    def check(value: object) -> int:
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"{displayed(value)} is not {noun}; allowed: {low} to {high}")

    return check


_MAX_LABEL = 63  # RFC 1035
_check_host = pattern_check(
    r"[A-Za-z0-9:._%][A-Za-z0-9._:%-]*", "a host name or address", "letters, digits, . _ : % - (- not first)"
)


def check_labels(value: str) -> str:
    """Return the host name; ValueError if a label is empty or longer than 63 characters, which resolvers refuse."""
    if all(1 <= len(label) <= _MAX_LABEL for label in value.removesuffix(".").split(".")):
        return value
    allowed = f"1 to {_MAX_LABEL} characters between dots"
    raise ValueError(f"{displayed(value)} is not a host name or address; allowed: {allowed}")


def check_address(value: str) -> str:
    """Return the value if it is a host name or an IP address, without characters special to a shell or ssh; else ValueError."""
    host, _, zone = _check_host(value).partition("%")
    if ":" not in value and "%" not in value:
        return check_labels(value)
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        hint = "write a port into port:" if ":" in value else "% is for the zone of an IPv6 address"
        raise ValueError(f"{displayed(value)} is not a host name or address; {hint}") from error
    if value.endswith("%") or "%" in zone:
        raise ValueError(f"{displayed(value)} is not an IPv6 address; allowed: one zone, as in fe80::1%eth0")
    return value


check_user = pattern_check(r"[A-Za-z0-9._][A-Za-z0-9._@-]*", "a user name", "letters, digits, . _ @ - (- not first)")
check_port = integer_check("a port", 1, 65535)


def jump_host(text: str) -> tuple[str | None, str, int | None]:
    """Parse [user@]host[:port], with ssh:// before it and brackets around an IPv6 address, or not; ValueError if a part is wrong."""
    user, at, rest = text.strip().removeprefix("ssh://").removesuffix("/").rpartition("@")
    found = re.fullmatch(r"\[([^\]]+)\](?::(.+))?", rest) or re.fullmatch(r"([^:]+)(?::([^:]+))?", rest)
    host, port = found.groups() if found else (rest, None)  # an IPv6 address without brackets has no port
    return check_user(user) if at else None, check_address(host), check_port(port) if port is not None else None
