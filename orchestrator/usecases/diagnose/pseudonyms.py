"""Replace names, addresses, folders and secrets in texts by pseudonyms: equal ones by equal ones, so that a text can still be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from orchestrator.inventory.redaction import REDACTED, is_secret

_ASSIGNMENT = re.compile(
    r"\b(?P<name>[A-Za-z][\w.-]*)(?P<sign>['\"]?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;'\"]+)"
)
_TOKENS = re.compile(
    r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abpr]-|AKIA|ASIA|eyJ)[\w./+-]{8,}"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![\w/+.-])(?!_Z)(?=[\w+=-]*[0-9])(?=[\w+=-]*[A-Z])(?=[\w+=-]*[a-z])[\w+=-]{32,}"
)
_URL = re.compile(r"://(?P<user>[^\s/@]+@)?(?P<host>[\w.-]*[A-Za-z][\w.-]*)")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}(?:[0-9a-fA-F]{2}:?)+(?![\w:])")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}|::ffff:[0-9.]+)(?![\w:])"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")
_DOMAIN = re.compile(
    r"(?<![\w./-])(?:[a-z0-9-]+\.)+(?:com|net|org|edu|gov|io|ai|cn|de|fr|uk|jp|eu|local|lan|internal|cluster|svc|corp|intra)\b(?!\()"
)
_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_PATH = re.compile(r"(?:(?<![\w/.~])|(?<=-[LI]))(?P<folder>(?:~[\w.-]*)?(?:/[\w.@+=%~-]+)+)(?P<last>/[\w.@+=%~-]*)?")
_SYSTEM = re.compile(
    r"/(?:usr|lib|lib64|bin|sbin|dev|proc|sys|etc|run|pytorch|opt/(?:conda|pytorch|nvidia|amazon))(?:/|$)"
)
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python\d\.\d+/")
_LOOPBACK = re.compile(r"127\.|0\.0\.0\.0|255\.|::1$")
_LEAST_NAME = 3
_COMMON = {"root", "localhost", "user", "users", "node", "nodes", "name", "host", "addr", "path", "email", "secret"}
"""Names that say nothing, or are words of pseudonyms."""


class Pseudonyms:
    """The pseudonyms of one report; `count` has how many different things of each kind were replaced."""

    def __init__(self, *, users: Iterable[str], hosts: Iterable[str], names: Iterable[str] = ()) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self.count: Counter[str] = Counter()
        by_kind = {"user": users, "node": hosts, "name": names}
        self.names = {name: kind for kind, of_kind in by_kind.items() for name in of_kind if _is_name(name)}
        """The real names that are known, and their kinds."""
        alternatives = "|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True))
        self._known = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])", re.IGNORECASE) if alternatives else None
        )
        self._kinds = {name.lower(): kind for name, kind in self.names.items()}

    def replaced(self, text: str) -> str:
        text = _TOKENS.sub(lambda _: self._secret(), text)
        text = _ASSIGNMENT.sub(self._without_secret, text)
        text = _URL.sub(self._without_host, text)
        for kind, pattern in (("email", _EMAIL), ("id", _UUID), ("mac", _MAC), ("addr", _IPV6), ("addr", _IPV4)):
            text = pattern.sub(partial(self._numbered, kind), text)
        text = _PATH.sub(self._without_folder, text)
        if self._known is not None:
            text = self._known.sub(lambda found: self._pseudonym(self._kinds[found[0].lower()], found[0].lower()), text)
        return _DOMAIN.sub(partial(self._numbered, "host"), text)

    def left(self, text: str) -> list[str]:
        """The known names and addresses that a text still has after the replacement."""
        found = [] if self._known is None else self._known.findall(text)
        patterns: tuple[Callable[[str], list[str]], ...] = (_IPV4.findall, _EMAIL.findall, _MAC.findall)
        return found + [part for find in patterns for part in find(text) if not _LOOPBACK.match(part)]

    def _pseudonym(self, kind: str, value: str) -> str:
        if (kind, value) not in self._given:
            self.count[kind] += 1
            self._given[kind, value] = f"{kind}-{self.count[kind]}"
        return self._given[kind, value]

    def _numbered(self, kind: str, found: re.Match[str]) -> str:
        return found[0] if _LOOPBACK.match(found[0]) else self._pseudonym(kind, found[0])

    def _secret(self) -> str:
        self.count["secret"] += 1
        return REDACTED

    def _without_secret(self, found: re.Match[str]) -> str:
        if not is_secret(found["name"]) or found["value"] == REDACTED:
            return found[0]
        return f"{found['name']}{found['sign']}{self._secret()}"

    def _without_host(self, found: re.Match[str]) -> str:
        """The host of a URL, and a password before it."""
        login = f"{self._secret()}@" if found["user"] else ""
        return f"://{login}{self._pseudonym('host', found['host'])}"

    def _without_folder(self, found: re.Match[str]) -> str:
        """A path with its folders, except those of the system and of Python's packages, as one pseudonym."""
        path = found[0]
        packages = _PACKAGES.search(path)
        if packages is not None:
            return self._pseudonym("/path", path[: packages.start()]) + path[packages.start() :]
        if _SYSTEM.match(path):
            return path
        folder, _, last = path.rstrip("/").rpartition("/")
        if not folder:
            return self._pseudonym("/path", path) if path.count("/") == 1 and len(path) > _LEAST_NAME + 1 else path
        return f"{self._pseudonym('/path', folder)}/{last}"


def _is_name(name: str) -> bool:
    return len(name) >= _LEAST_NAME and not name.isdigit() and name.lower() not in _COMMON
