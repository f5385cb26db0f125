"""
The transport into a running container of a node: programs start by the runtime's `exec`, over the transport to the node.

A program that is started so is a process of the container: it shares its namespaces with all others there, it continues when the client of
`exec` is killed, and it ends with the container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.stored import known_fields
from orchestrator.transports.base import Channel, Transport

APPTAINER = "apptainer"
# The runtimes expand no `~/`; the home folder is that of the user in the container.
_HOME = 'program=$HOME/${1#"~/"}; shift; exec "$program" "$@"'
_SHELL = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi"


@dataclass(frozen=True, slots=True)
class ContainerName:
    """A running container: `name` by `runtime`, entered as `user` (None: the container's own), with `sudo` before the runtime."""

    runtime: str
    name: str
    user: str | None = None
    sudo: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ContainerName:
        """The container in a plan that any version has stored."""
        return cls(**known_fields(cls, settings))

    def __str__(self) -> str:
        return f"{self.runtime} container {self.name}"

    @property
    def client(self) -> list[str]:
        """The runtime's client on the node; sudo asks for no password, since there is no terminal."""
        return [*(["sudo", "-n"] if self.sudo else []), self.runtime]

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that starts a program in the container, with its stdin."""
        words = ["sh", "-c", _HOME, "sh", *argv] if argv[0].startswith("~/") else argv
        return [*self._exec("-i"), *words]

    def login_shell(self) -> list[str]:
        """The command that starts a shell for a person in the container, on a terminal."""
        return [*self._exec("-it"), "sh", "-c", _SHELL]

    def _exec(self, options: str) -> list[str]:
        if self.runtime == APPTAINER:
            return [*self.client, "exec", f"instance://{self.name}"]
        return [*self.client, "exec", options, *(["--user", self.user] if self.user else []), self.name]


class ContainerTransport:
    """Starts programs in a container of a node."""

    def __init__(self, outer: Transport, container: ContainerName) -> None:
        """`outer` is the transport to the node itself."""
        self.outer = outer
        self.container = container

    @property
    def node(self) -> str:
        return self.outer.node

    @property
    def remark(self) -> str:
        return self.outer.remark

    @property
    def queued_s(self) -> float:
        return self.outer.queued_s

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a program in the container; the errors of the runtime's client are on stderr, with its exit status."""
        return self.outer.open(self.container.inside(argv))

    def command_to_try(self, argv: Sequence[str]) -> str:
        return self.outer.command_to_try(self.container.inside(argv))

    def close(self) -> None:
        self.outer.close()
