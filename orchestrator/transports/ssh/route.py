"""The route to a node, from the inventory and ssh_config: the hosts to log in to, each through the one before. No connections here."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from orchestrator.portable.names.addresses import check_address, check_port, check_user, jump_host
from orchestrator.stored import known_fields

DEFAULT_PORT = 22
PROGRAM_KEYWORDS = ("BindAddress", "BindInterface", "KnownHostsCommand", "ProxyUseFdpass", "RevokedHostKeys")
"""Keywords that orch leaves to the program ssh: ignoring them would reach the host in another way, or trust other keys."""
PROGRAM_METHODS = {
    "gssapi-with-mic": "GSSAPIAuthentication",
    "hostbased": "HostbasedAuthentication",
    "publickey": "PKCS11Provider",
}
"""Authentication methods for which only the program ssh has all means, and the keywords that enable these."""
_MAX_HOPS = 8

Settings: TypeAlias = Mapping[str, "str | list[str]"]
Lookup: TypeAlias = Callable[[str, str | None, int | None], Settings]
"""Looks up a host's settings in ssh_config, for a user and a port if the inventory has them."""
T = TypeVar("T")


class RouteError(ValueError):
    """The configuration gives no route; the message is the reason."""


class Destination(Protocol):
    """The fields of a node for connecting to it; a Node of the inventory or of a plan."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def user(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...


class SshSettings(Protocol):
    """The ssh settings: the SshOptions of an inventory, or the PlannedSsh of a plan."""

    @property
    def config(self) -> str | None: ...
    @property
    def proxy_jump(self) -> str | None: ...
    @property
    def host_keys(self) -> str: ...
    @property
    def fanout(self) -> int: ...
    @property
    def connect_timeout_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class PlannedSsh:
    """Settings of a plan, checked when the plan was made: importing the checks takes longer than most commands run."""

    config: str | None
    proxy_jump: str | None
    host_keys: str
    fanout: int
    connect_timeout_s: float

    @classmethod
    def of(cls, ssh: Mapping[str, Any]) -> PlannedSsh:
        """The settings in a plan that any version has stored."""
        return cls(**known_fields(cls, ssh))


@dataclass(frozen=True, slots=True)
class Hop:
    """
    One login.

    `key_name` overrides the host's name in known_hosts; `agent` is the socket of the ssh agent, None if there is none;
    `may_prompt` is True if the user may be prompted at the terminal; `program_methods` are PROGRAM_METHODS that the
    configuration enables; `program_keyword` is the first of PROGRAM_KEYWORDS that the configuration sets, or empty.
    """

    address: str
    host: str
    port: int
    user: str
    identities: tuple[Path, ...]
    certificates: tuple[Path, ...]
    identities_only: bool
    agent: Path | None
    may_prompt: bool
    key_name: str | None
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    proxy_command: str | None
    program_methods: Mapping[str, str] = field(default_factory=dict)
    program_keyword: str = ""


def route(target: Destination, proxy_jump: str | None, lookup: Lookup) -> list[Hop]:
    """
    The hops from this machine to the target, which is the last one.

    Args:
        proxy_jump: overrides the ProxyJump of the target in the configuration; the jump hosts follow the configuration.
        lookup: returns the settings of a host in the configuration; see config.lookup.

    Raises:
        RouteError: jump hosts lead in a circle, or a name, user or port in the configuration is invalid.
    """
    return _route(target.address, target.user, target.port, (proxy_jump, lookup, 0))


def _route(address: str, user: str | None, port: int | None, context: tuple[str | None, Lookup, int]) -> list[Hop]:
    proxy_jump, lookup, depth = context
    if depth == _MAX_HOPS:
        raise RouteError(f"the jump hosts of {address} lead in a circle")
    settings = lookup(address, user, port)
    hop = _hop(address, user, port, settings)
    texts = (proxy_jump or _value(settings, "proxyjump") or "none").split(",")
    jumps = [checked_value("ProxyJump", address, jump_host, text) for text in texts]
    if jumps[0][1] in ("none", address):
        return [hop]
    first_user, first_address, first_port = jumps[0]
    hops = _route(first_address, first_user, first_port, (None, lookup, depth + 1))
    for jump_user, jump_address, jump_port in jumps[1:]:
        hops.append(_hop(jump_address, jump_user, jump_port, lookup(jump_address, jump_user, jump_port)))
    return [*hops, hop]


def _hop(address: str, user: str | None, port: int | None, settings: Settings) -> Hop:
    def checked(keyword: str, check: Callable[[str], T]) -> T | None:
        value = _value(settings, keyword.lower())
        return None if value is None else checked_value(keyword, address, check, value)

    host = checked("HostName", check_address) or address
    port = port or checked("Port", check_port) or DEFAULT_PORT
    user = user or checked("User", check_user) or getpass.getuser()
    tokens = {"%%": "%", "%d": str(Path.home()), "%h": host, "%n": address, "%p": str(port), "%r": user}
    tokens["%u"] = getpass.getuser()
    command = _value(settings, "proxycommand") or "none"

    def is_set(keyword: str) -> bool:
        return (_value(settings, keyword.lower()) or "none").lower() not in ("none", "no")

    def path(name: str) -> Path:
        variables_expanded = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), name)
        return Path(_with_tokens(variables_expanded, tokens)).expanduser()

    def files(keyword: str, default: str) -> tuple[Path, ...]:
        text = _value(settings, keyword.lower()) or default
        names: Sequence[str] = [] if text.lower() == "none" else checked_value(keyword, address, shlex.split, text)
        return tuple(path(name) for name in names)

    agent = _value(settings, "identityagent") or "SSH_AUTH_SOCK"
    if variable := re.fullmatch(r"SSH_AUTH_SOCK|\$(\w+)", agent):
        agent = os.environ.get(variable[1] or agent, "")

    return Hop(
        address=address,
        host=host,
        port=port,
        user=user,
        identities=tuple(path(_unquoted(name)) for name in settings.get("identityfile", []) if name.lower() != "none"),
        certificates=files("CertificateFile", "none"),
        identities_only=_value(settings, "identitiesonly") == "yes",
        agent=path(agent) if agent and agent.lower() != "none" else None,
        may_prompt=(_value(settings, "batchmode") or "").lower() != "yes",
        key_name=checked("HostKeyAlias", check_address),  # a pattern would be added to known_hosts for every host
        user_known_hosts=files("UserKnownHostsFile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
        global_known_hosts=files("GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"),
        proxy_command=_with_tokens(command, tokens) if command.lower() != "none" else None,
        program_methods={method: keyword for method, keyword in PROGRAM_METHODS.items() if is_set(keyword)},
        program_keyword=next((keyword for keyword in PROGRAM_KEYWORDS if is_set(keyword)), ""),
    )


def checked_value(keyword: str, address: str, check: Callable[[str], T], value: str) -> T:
    """
    Check or parse a value of the configuration of this host name, or of this file.

    Values are checked as an inventory's values are: they may become part of a command line or a file.
    """
    try:
        return check(value)
    except ValueError as error:
        raise RouteError(f"{keyword} of {address}: {error}") from error


def _value(settings: Settings, key: str) -> str | None:
    value = settings.get(key)
    return _unquoted(value) if isinstance(value, str) else None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1] else text


def _with_tokens(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub("%.", lambda token: tokens.get(token[0], token[0]), text)
