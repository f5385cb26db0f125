"""
The types of an inventory's fields, with their checks. The models are in model.py; the `slurm:` section is in slurm.py.

Every message names the value that was found and the values that are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from orchestrator.node.agent.environment import LOGIN_NAMES, STALE_NAMES, is_stale
from orchestrator.portable.names.addresses import (
    check_address,
    check_labels,
    check_port,
    check_user,
    displayed,
    integer_check,
    jump_host,
    pattern_check,
)
from orchestrator.portable.names.hostlist import expand

STRICT = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
"""For every mapping in an inventory: unknown keys are refused, and pydantic's messages hold no values."""

AcceleratorKind: TypeAlias = Literal["cuda", "gcu", "cpu", "auto"]
DEFAULT_RANKS: Mapping[AcceleratorKind, int] = MappingProxyType({"cuda": 8, "gcu": 8, "cpu": 1, "auto": 1})
"""Ranks per node without `devices:`: the devices of an H800 or T20 server, or 1 if they are unknown."""
Binding: TypeAlias = Literal["auto", "none"]
Network: TypeAlias = Literal["auto", "infiniband", "roce", "ethernet"]
TransportKind: TypeAlias = Literal["ssh", "local"]
Retries: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of retries", 0, 10_000))]
HostKeys: TypeAlias = Literal["strict", "accept-new"]

# The size of the launch, which programs that start ranks themselves read.
_LAUNCH_SIZE = frozenset(["NNODES", "NODE_RANK", "NPROC_PER_NODE"])
_SET_BY_USERS = frozenset([b"ORCH_START_TIMEOUT"])  # read by trainer/scripts/mmengine.py
_SET_BY_ORCH_PREFIXES = (b"TORCHELASTIC_", b"PET_", b"ORCH_")
# The scripts of a job, and the agents' requests to requeue it, read these after node.sh has exported the inventory's values.
_JOB_VARIABLES = re.compile(rb"SLURMD_.*|SLURM_(JOB_?ID|RESTART_COUNT|ARRAY_.*)")
# /bin/sh, either dash or bash, changes or refuses these when a script exports them; found by experiment (test_secrets.py).
_SHELL_VARIABLES = frozenset(
    (
        "_ BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_CMDS BASH_COMMAND BASH_LINENO BASH_MONOSECONDS "
        "BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD "
        "LINENO OPTIND PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID"
    ).split()
)
_MOST_SECONDS = 3600
_MAX_VALUE_BYTES = 130_000  # Linux passes at most 128 KiB per variable, including its name and a NUL


def _check_seconds(value: object) -> float:
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) and 0 < float(text) <= _MOST_SECONDS:
        return float(text)
    raise ValueError(f"{displayed(value)} is not a time in seconds; allowed: above 0, up to {_MOST_SECONDS}")


def check_env_name(name: str) -> str:
    """Return the name of a variable; ValueError if it is not a valid name, or users may not set it."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise ValueError("not the name of a variable; allowed: letters, digits and _, not a digit first")
    if name in _LAUNCH_SIZE:
        raise ValueError(
            "orch sets this variable from -j or the nodes' devices; delete the line, and start a program that launches "
            "its ranks by it with --per-node"
        )
    raw = name.encode()
    if raw in STALE_NAMES or (raw.startswith(_SET_BY_ORCH_PREFIXES) and raw not in _SET_BY_USERS):
        raise ValueError("orch sets this variable for every rank; delete the line")
    if is_stale(raw):
        raise ValueError("a variable of another launcher, which orch keeps from the ranks; delete the line")
    if _JOB_VARIABLES.fullmatch(raw):
        raise ValueError("Slurm sets this variable for every job; delete the line")
    if raw in LOGIN_NAMES:
        raise ValueError("a variable of the SSH login, which orch keeps from the ranks; delete the line")
    if name in _SHELL_VARIABLES:
        raise ValueError("a variable that the shell itself sets; delete the line")
    return name


def check_env_value(value: str) -> str:
    """Return a variable's value; ValueError if no variable can hold it. No message contains the value."""
    if "\0" in value:
        raise ValueError("holds a NUL, which no environment variable can")
    if len(value.encode("utf-8", "surrogateescape")) > _MAX_VALUE_BYTES:
        raise ValueError(f"longer than {_MAX_VALUE_BYTES} bytes, more than Linux passes to a program")
    return value


def _check_text_value(value: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half of a surrogate pair, which is not a character")
    return check_env_value(value)


def check_each_name(check: Callable[[str], str]) -> Callable[[str], str]:
    """Build a check of every name in a host list; it returns the host list."""

    def check_all(pattern: str) -> str:
        for name in expand(pattern):
            check(name)
        return pattern

    return check_all


_check_name = pattern_check(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name", "letters, digits, . _ - (a letter or digit first)")


def _check_jump_hosts(text: str) -> str:
    for host in _check_jump_characters(text).split(","):
        try:
            jump_host(host)
        except ValueError as error:
            raise ValueError(f"{displayed(text)} is not a jump host: {error}") from error
    return text


def _check_variables(path: str) -> str:
    """Return a path on the node, with `~/` for `$HOME/`; ValueError if a folder has the name of a variable."""
    path = re.sub(r"^(\$HOME|\$\{HOME\})/", "~/", path)
    if found := re.search(r"(?:^|/)(\$(?:\w+|\{[^/]*\}))(?=/|$)", path):
        allowed = "~/ or $HOME/ first, and $USER in workdir"
        raise ValueError(f"{displayed(path)}: {found[1]} is not expanded here; allowed: {allowed}")
    return path


def _check_folder_variables(path: str) -> str:
    """As above; a folder `$USER` is allowed, and gets the name of the node's user."""
    parts = re.split(r"(?<=/)(?:\$USER|\$\{USER\})(?=/|$)", path)
    return "$USER".join(map(_check_variables, parts))


check_program = pattern_check(
    r"~?/.+|[A-Za-z0-9._][^/\s]*", "a program", "an absolute path, ~/ and a path, or a plain command name"
)
_check_folder = pattern_check(r"~?/.*", "a folder on the node", "an absolute path, or ~/ and a path")
_check_file = pattern_check(r"[^-].*", "a file name", "a path that does not start with -")
_check_jump_characters = pattern_check(
    r"[A-Za-z0-9._:%\[][A-Za-z0-9._:%@,/\[\]-]*", "a jump host", "host or user@host:port, more of them after commas"
)

Name: TypeAlias = Annotated[str, AfterValidator(_check_name)]
# a node's name is also its default address
NamePattern: TypeAlias = Annotated[str, AfterValidator(check_each_name(lambda name: check_labels(_check_name(name))))]
Address: TypeAlias = Annotated[str, AfterValidator(check_address)]
AddressPattern: TypeAlias = Annotated[str, AfterValidator(check_each_name(check_address))]
User: TypeAlias = Annotated[str, AfterValidator(check_user)]
Port: TypeAlias = Annotated[int, BeforeValidator(check_port)]
RankCount: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of ranks", 1, 1024))]
FanOut: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of connections", 1, 1024))]
Seconds: TypeAlias = Annotated[float, BeforeValidator(_check_seconds)]
Executable: TypeAlias = Annotated[str, AfterValidator(_check_variables), AfterValidator(check_program)]
Folder: TypeAlias = Annotated[str, AfterValidator(_check_folder_variables), AfterValidator(_check_folder)]
File: TypeAlias = Annotated[str, AfterValidator(_check_file)]
Jump: TypeAlias = Annotated[str, AfterValidator(_check_jump_hosts)]
SetupLine: TypeAlias = Annotated[
    str, AfterValidator(pattern_check(r".+", "a line of shell", "characters that can be printed, no line break"))
]
Environment: TypeAlias = dict[
    Annotated[str, AfterValidator(check_env_name)], Annotated[str, AfterValidator(_check_text_value)]
]


Module: TypeAlias = Annotated[
    str,
    AfterValidator(
        pattern_check(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", "a module", "names with dots between them, as in mmcv.ops")
    ),
]
NodePath: TypeAlias = Annotated[
    str, AfterValidator(pattern_check(r"~?/.*", "a path on the node", "an absolute path, or ~/ and a path"))
]


def _check_kept(path: str) -> str:
    """Return a folder relative to the ranks' working folder, without `./` and a slash at the end; ValueError if it is none."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith(("/", "~", "$")) or ".." in parts or not parts or not path.isprintable():
        allowed = "a relative path without .., as in outputs"
        raise ValueError(f"{displayed(path)} is not a folder below the program's working folder; allowed: {allowed}")
    return "/".join(parts)


def _check_not_nested(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths; ValueError if one is the same as another one, or in it."""
    for path in paths:
        for parent in paths:
            if path != parent and path.startswith(f"{parent}/"):
                raise ValueError(f"{path} is in {parent}, which is kept as a whole; delete {path}")
    if len(set(paths)) < len(paths):
        raise ValueError("names a folder twice; delete one of them")
    return paths


KeptFolders: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_check_kept)], ...], AfterValidator(_check_not_nested)
]
# Values from an env_file; excluded from dumps and messages.
Secrets: TypeAlias = Annotated[dict[str, str], Field(exclude=True, repr=False)]
