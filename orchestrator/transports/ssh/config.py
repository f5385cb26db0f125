"""The settings of a host in ssh_config: by paramiko's parser, or by `ssh -G` if the configuration has what only ssh evaluates."""

from __future__ import annotations

import glob
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import paramiko

from orchestrator.fanout import once
from orchestrator.transports.ssh.route import Lookup, RouteError, Settings, checked_value

USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
EVALUATED_BY_SSH = re.compile(r"match|tag|canonical.*")
"""Keywords with effects on other lines, which paramiko reads differently or not at all."""
_MAX_INCLUDE_DEPTH = 16  # as in ssh
FRESH_S = 10.0  # a condition such as Match exec may change while a supervisor runs
EVALUATION_S = 30.0  # Match exec and canonical names may wait for a network


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The lines of the configuration with the included files; `evaluated` names its first line that only ssh evaluates."""

    text: str
    evaluated: str = ""


def lookup(config: Path | None) -> Lookup:
    """
    Return the lookup of a host's settings.

    Tokens of ProxyCommand stay unexpanded: the configuration does not know the user and the port of the inventory.

    Raises:
        RouteError, OSError, paramiko.ConfigParseError: the configuration cannot be read.
    """
    parsed, evaluated = _parsed(config, config.stat().st_mtime_ns if config else 0)
    if not evaluated:
        return lambda host, _user, _port: parsed.lookup(host)
    ssh = shutil.which("ssh")
    if ssh is None:
        raise RouteError(f"{evaluated} needs the program ssh, which is not installed here")
    argv = [ssh, "-T", "-G", *(["-F", str(config)] if config else [])]

    def evaluated_by_ssh(host: str, user: str | None, port: int | None) -> Settings:
        destination = [*(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", host]
        return _evaluated(int(time.monotonic() / FRESH_S), *argv, *destination)

    return evaluated_by_ssh


@once
def _parsed(config: Path | None, _mtime_ns: int) -> tuple[paramiko.SSHConfig, str]:
    """Read the configuration once for all nodes; do not parse it if ssh evaluates it."""
    read = read_config(config)
    return UserConfig.from_file(StringIO("" if read.evaluated else read.text)), read.evaluated


class UserConfig(paramiko.SSHConfig):
    """Leaves the tokens of a ProxyCommand unexpanded."""

    TOKENS_BY_CONFIG_KEY = {  # noqa: RUF012  paramiko's own
        key: tokens for key, tokens in paramiko.SSHConfig.TOKENS_BY_CONFIG_KEY.items() if key != "proxycommand"
    }


@once
def _evaluated(_period: int, *argv: str) -> Settings:
    """The settings that `ssh -G` prints; once for a jump host, which all nodes look up together."""
    try:
        result = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=EVALUATION_S,
            check=False,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except subprocess.TimeoutExpired as error:
        raise RouteError(f"`{shlex.join(argv)}` did not end within {EVALUATION_S:g} s") from error
    if result.returncode:
        reason = result.stderr.strip() or f"`{shlex.join(argv)}`: exit status {result.returncode}"
        raise RouteError(reason.splitlines()[0])
    settings: dict[str, str | list[str]] = {}
    for line in result.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        if keyword == "identityfile":
            values = settings.setdefault(keyword, [])
            assert isinstance(values, list)
            values.append(value)
        elif keyword == "certificatefile":
            settings[keyword] = f"{settings.get(keyword, '')} {shlex.quote(value)}".lstrip()
        else:
            if keyword.endswith("knownhostsfile"):
                # for shlex.split: ssh prints file names without quotes, so that a blank in the name of an only file is ambiguous
                value = shlex.quote(value) if Path(value).exists() else shlex.join(value.split())
            settings[keyword] = value
    return settings


def read_config(config: Path | None) -> ConfigText:
    """
    Read the configuration with its included files: the given file alone, or USER_CONFIG and SYSTEM_CONFIG.

    Raises:
        OSError: the given file cannot be read.
    """
    if config is not None:
        return _expanded(config.expanduser(), 0)
    parts = [_expanded(file.expanduser(), 0) for file in (USER_CONFIG, SYSTEM_CONFIG) if file.expanduser().is_file()]
    evaluated = next((part.evaluated for part in parts if part.evaluated), "")
    return ConfigText("\nHost *\n".join(part.text for part in parts), evaluated)


def _expanded(file: Path, depth: int) -> ConfigText:
    """Replace each Include, which paramiko does not support, by the files; the enclosing block continues after them."""
    lines, block, evaluated = [], "Host *", ""
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="surrogateescape").splitlines(), 1):
        line = line.strip()  # noqa: PLW2901
        if not line or line.startswith("#"):
            continue
        if not re.match(UserConfig.SETTINGS_REGEX, line):
            raise RouteError(f"{file} line {number}: not a keyword with a value: {line}")
        words = re.split(r"[\s=]+", line, maxsplit=1)
        keyword = words[0].lower()
        if keyword in ("host", "match"):
            block = line
        if EVALUATED_BY_SSH.fullmatch(keyword):
            evaluated = evaluated or f"{words[0]} in {file} line {number}"
        if keyword != "include":
            lines.append(line)
            continue
        if depth == _MAX_INCLUDE_DEPTH:
            raise RouteError(f"{file} line {number}: files that include each other")
        for pattern in checked_value("Include", str(file), shlex.split, words[1]):
            is_system = file.is_relative_to(SYSTEM_CONFIG.parent)
            base = SYSTEM_CONFIG.parent if is_system else USER_CONFIG.expanduser().parent
            for path in sorted(glob.glob(str(base / Path(pattern).expanduser()))):  # noqa: PTH207  absolute patterns
                included = _expanded(Path(path), depth + 1)
                evaluated = evaluated or included.evaluated
                lines += [included.text, block]
    return ConfigText("\n".join(lines), evaluated)
