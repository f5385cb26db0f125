"""
The `hooks:` of an inventory: what is run or sent when the state of a run changes, and which states.

The URL of a webhook and those of apprise are secrets of services: the inventory names a private file or a variable that holds them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, model_validator

from orchestrator.errors import UsageError
from orchestrator.inventory import fields
from orchestrator.inventory.document import resolve_path
from orchestrator.inventory.secrets import private_bytes
from orchestrator.portable.names.addresses import pattern_check

HookEvent: TypeAlias = Literal[
    "STARTING", "RUNNING", "RESTARTED", "DONE", "FAILED", "STOPPED", "NO_PROGRESS", "SLOW", "DIFFERS", "NOT_FINITE", "IDLE_CARDS"
]  # fmt: skip
"""
States, and conditions that may be wrong with a run that continues: reported when one begins and when it is over.

Not PENDING, which no process watches, and not LOST: nothing is left that could run a hook. RESTARTED is the first state of another
attempt than the first.
"""
_KINDS = ("command", "webhook_file", "webhook_variable", "email", "apprise_file")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")
_SENDMAIL_FOLDERS = "/usr/sbin:/usr/lib"  # of sendmail, which are not on every user's PATH


def _check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("is empty; name at least one, or delete the line")
    return values


def _check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    fields.check_program(_check_not_empty(words)[0])
    if any("\0" in word for word in words):
        raise ValueError("holds a NUL, which no argument of a program can")
    return words


_check_recipient = pattern_check(
    r"[A-Za-z0-9._%+][A-Za-z0-9._%+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?", "an e-mail address", "user@host, or a local user"
)
_check_variable = pattern_check(
    r"[A-Za-z_][A-Za-z0-9_]{0,254}", "the name of a variable", "letters, digits and _, not a digit first"
)
_Recipient: TypeAlias = Annotated[str, AfterValidator(_check_recipient)]
_Variable: TypeAlias = Annotated[str, AfterValidator(_check_variable)]


class Hook(BaseModel):
    """One hook, which has one of the five kinds; file names are absolute once the inventory is loaded."""

    model_config = fields.STRICT

    on: Annotated[tuple[HookEvent, ...], AfterValidator(_check_not_empty)] = ("DONE", "FAILED", "STOPPED")
    tags: tuple[str, ...] = ()
    """Only runs with one of these tags; empty: all runs."""
    command: Annotated[tuple[str, ...], AfterValidator(_check_command)] | None = None
    """A program and its arguments; no shell."""
    webhook_file: fields.File | None = None
    """A private file that holds the URL."""
    webhook_variable: _Variable | None = None
    """A variable of the environment of orch that holds the URL."""
    email: Annotated[tuple[_Recipient, ...], AfterValidator(_check_not_empty)] | None = None
    """Recipients; the local sendmail program sends the e-mail."""
    apprise_file: fields.File | None = None
    """A private configuration file of apprise."""
    timeout_s: fields.Seconds = 30.0
    """After this time the program is killed; for a webhook, the time of one attempt."""

    @model_validator(mode="after")
    def _check_one_kind(self) -> Hook:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {' and '.join(given) or 'no action'}; give exactly one of {', '.join(_KINDS)}")
        return self

    def __str__(self) -> str:
        """The action, without secrets."""
        if self.command is not None:
            return f"command {self.command[0]}"
        if self.email is not None:
            return f"e-mail to {', '.join(self.email)}"
        if self.apprise_file is not None:
            return f"apprise by {self.apprise_file}"
        return f"webhook of {self.webhook_file or f'${self.webhook_variable}'}"

    @property
    def private_file(self) -> str | None:
        return self.webhook_file or self.apprise_file

    def resolved(self, inventory: str) -> Hook:
        """The hook with the name of the private file resolved against the folder of the inventory file."""
        changed = {
            name: str(Path(resolve_path(inventory, value)).expanduser())
            for name in ("webhook_file", "apprise_file")
            if (value := getattr(self, name)) is not None
        }
        return self.model_copy(update=changed)

    def program(self) -> str:
        """The path of the program that the hook starts; UsageError if it does not exist."""
        if self.command is not None:
            name, path, hint = str(Path(self.command[0]).expanduser()), None, "name an executable file"
        elif self.email is not None:
            path = f"{os.environ.get('PATH', os.defpath)}:{_SENDMAIL_FOLDERS}"
            name, hint = "sendmail", "install a mail server such as msmtp-mta"
        else:
            path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
            name, hint = "apprise", "pip install apprise"
        found = shutil.which(name, path=path)
        if found is None:
            raise UsageError(f"hooks: {self}: there is no program {name} on this machine", hint=hint)
        return found

    def url(self, environ: Mapping[str, str]) -> str:
        """The URL; UsageError, without the text, if it cannot be read, or is not one that orch sends to."""
        if self.webhook_variable is not None:
            text, hint = environ.get(self.webhook_variable, ""), f"export {self.webhook_variable}=https://…"
        else:
            text, hint = _read_private(self), "write the URL, and nothing else, into the file"
        text = text.strip()
        if not text.isascii() or not text.isprintable() or " " in text or (parts := _url_parts(text)) is None:
            raise UsageError(f"hooks: {self}: it holds no URL" if text else f"hooks: {self}: it is empty", hint=hint)
        if parts.scheme != "https" and not (parts.scheme == "http" and _LOOPBACK.fullmatch(parts.hostname or "")):
            message = (
                f"hooks: {self}: the URL begins with {parts.scheme}:; allowed: https, and http to this machine itself"
            )
            raise UsageError(message, hint="the URL of a webhook is a secret, which http sends in plain text")
        if "@" in parts.netloc:
            text = f"hooks: {self}: the URL has a user or password before @, which is not supported"
            raise UsageError(text, hint=hint)
        return text

    def require_deliverable(self, environ: Mapping[str, str]) -> None:
        """Raise UsageError if the program, the file or the variable is missing."""
        if self.webhook_file is not None or self.webhook_variable is not None:
            self.url(environ)
            return
        self.program()
        if self.apprise_file is not None:
            _read_private(self)


def _url_parts(text: str) -> SplitResult | None:
    """The parts of a URL; None if it has no host, or its port is no number."""
    try:
        parts = urlsplit(text)
        is_valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid else None


def _read_private(hook: Hook) -> str:
    assert hook.private_file is not None
    try:
        return private_bytes(hook.private_file).decode("utf-8", "replace")
    except OSError as error:
        text = f"hooks: {hook}: {error.strerror or error}"
        raise UsageError(text, hint="the file must exist, belong to you and have mode 0600") from error
