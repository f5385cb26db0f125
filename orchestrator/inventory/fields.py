"""
What each field of an inventory may hold, as types that check; the models made of them are in inventory.py, those of
its `slurm:` section, with the types that only it has, in inventory_slurm.py.

Every refusal says what was found and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from orchestrator.names.addresses import (
    check_address,
    check_labels,
    check_port,
    check_user,
    jump_host,
    matching,
    shown,
    whole_number,
)
from orchestrator.names.hostlist import expand

STRICT = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
"""Of every mapping in an inventory: what is no field of it is refused, and no message shows a value that it need not."""

AcceleratorKind: TypeAlias = Literal["cuda", "gcu", "cpu", "auto"]
DEFAULT_RANKS: Mapping[AcceleratorKind, int] = MappingProxyType({"cuda": 8, "gcu": 8, "cpu": 1, "auto": 1})
"""Ranks per node where the inventory names no number: the devices of an H800 or T20 server, and 1 where they are unknown."""
Network: TypeAlias = Literal["auto", "infiniband", "roce", "ethernet"]
TransportKind: TypeAlias = Literal["ssh", "local"]
HostKeys: TypeAlias = Literal["strict", "accept-new"]

# What the agent sets for every rank (the set torchrun sets, and orch's own); a value here would be a second truth.
_SET_BY_ORCH = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
)
_SET_BY_ORCH_PREFIXES = ("TORCHELASTIC_", "PET_", "ORCH_")
# What the agent drops, for another launcher may have left it (node/environment.py), and what a job script goes by.
_OF_A_LAUNCHER = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "OMPI_")
# What /bin/sh, be it dash or bash, changes or refuses when a script exports it; values that did not arrive as written.
_OF_THE_SHELL = frozenset(
    [
        "_",
        "BASHOPTS",
        "BASHPID",
        "BASH_ALIASES",
        "BASH_ARGC",
        "BASH_ARGV",
        "BASH_CMDS",
        "BASH_COMMAND",
        "BASH_LINENO",
        "BASH_MONOSECONDS",
        "BASH_SOURCE",
        "BASH_SUBSHELL",
        "BASH_VERSINFO",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "LINENO",
        "OPTIND",
        "PIPESTATUS",
        "PPID",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "UID",
    ]
)
_LONGEST_VALUE = 130_000  # Linux passes at most 128 KiB a variable, its name and a NUL included


def _seconds(value: object) -> float:
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) and 0 < float(text) <= 3600:  # noqa: PLR2004  an hour
        return float(text)
    raise ValueError(f"{shown(value)} is not a time in seconds; allowed: above 0, up to 3600")


def check_env_name(name: str) -> str:
    """Give the name of a variable back; ValueError where it is none, or not the user's to set."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise ValueError("not the name of a variable; allowed: letters, digits and _, not a digit first")
    if name in _SET_BY_ORCH or name.startswith(_SET_BY_ORCH_PREFIXES):
        raise ValueError("orch sets this variable for every rank; delete the line")
    if name.startswith(_OF_A_LAUNCHER) and name != "SLURM_CONF":
        raise ValueError("a variable of another launcher, which orch keeps from the ranks; delete the line")
    if name in _OF_THE_SHELL:
        raise ValueError("a variable of the shell itself, which gives it a value of its own; delete the line")
    return name


def check_env_value(value: str) -> str:
    """Give a value back; ValueError where no variable can have it. What it is, no message says."""
    if "\0" in value:
        raise ValueError("holds a NUL, which no environment variable can")
    if len(value.encode("utf-8", "surrogateescape")) > _LONGEST_VALUE:
        raise ValueError(f"longer than {_LONGEST_VALUE} bytes, more than Linux passes to a program")
    return value


def _whole_characters(value: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half of a surrogate pair, which is no character")
    return check_env_value(value)


def each_name(check: Callable[[str], str]) -> Callable[[str], str]:
    """Check every name that a pattern stands for, and keep the pattern."""

    def check_all(pattern: str) -> str:
        for name in expand(pattern):
            check(name)
        return pattern

    return check_all


_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name", "letters, digits, . _ - (a letter or digit first)")


def _node_name(value: str) -> str:
    """Check a name that is the address too where none is given."""
    return check_labels(_name(value))


def _jumps(text: str) -> str:
    for one in _jump(text).split(","):
        try:
            jump_host(one)
        except ValueError as error:
            raise ValueError(f"{shown(text)} is not a jump host: {error}") from error
    return text


_program = matching(
    r"~?/.+|[A-Za-z0-9._][^/\s]*", "a program", "an absolute path, ~/ and a path, or a plain command name"
)
_folder = matching(r"~?/.*", "a folder on the node", "an absolute path, or ~/ and a path")
_file = matching(r"[^-].*", "a file name", "a path that does not start with -")
_jump = matching(
    r"[A-Za-z0-9._:%\[][A-Za-z0-9._:%@,/\[\]-]*", "a jump host", "host or user@host:port, more of them after commas"
)

Name: TypeAlias = Annotated[str, AfterValidator(_name)]
NamePattern: TypeAlias = Annotated[str, AfterValidator(each_name(_node_name))]
Address: TypeAlias = Annotated[str, AfterValidator(check_address)]
AddressPattern: TypeAlias = Annotated[str, AfterValidator(each_name(check_address))]
User: TypeAlias = Annotated[str, AfterValidator(check_user)]
Port: TypeAlias = Annotated[int, BeforeValidator(check_port)]
RankCount: TypeAlias = Annotated[int, BeforeValidator(whole_number("a number of ranks", 1, 1024))]
FanOut: TypeAlias = Annotated[int, BeforeValidator(whole_number("a number of connections", 1, 1024))]
Seconds: TypeAlias = Annotated[float, BeforeValidator(_seconds)]
Executable: TypeAlias = Annotated[str, AfterValidator(_program)]
Folder: TypeAlias = Annotated[str, AfterValidator(_folder)]
File: TypeAlias = Annotated[str, AfterValidator(_file)]
Jump: TypeAlias = Annotated[str, AfterValidator(_jumps)]
Environment: TypeAlias = dict[
    Annotated[str, AfterValidator(check_env_name)], Annotated[str, AfterValidator(_whole_characters)]
]
# Values out of an env_file; excluded from whatever is dumped or shown.
Secrets: TypeAlias = Annotated[dict[str, str], Field(exclude=True, repr=False)]
