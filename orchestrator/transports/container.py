"""
The transport into a container of a node: programs start by the runtime's `exec`, over the transport to the node.

A program that is started so is a process of the container: it shares its namespaces with all others there, it continues when the client of
`exec` is killed, and it ends with the container.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.portable.checks.container_state import GCU_OPTION, GPU_OPTIONS
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
        """The runtime's client on the node."""
        return _client(self.runtime, sudo=self.sudo)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that starts a program in the container, with its stdin."""
        words = ["sh", "-c", _HOME, "sh", *argv] if argv[0].startswith("~/") else argv
        return [*self._exec("-i"), *words]

    def inspect(self) -> list[str]:
        """The command that describes the container, as JSON."""
        if self.runtime == APPTAINER:
            return [*self.client, "instance", "list", "--json", self.name]
        return [*self.client, "container", "inspect", self.name]

    def to_try(self, argv: Sequence[str]) -> list[str]:
        """The command by which a person starts the same program."""
        return self.inside(argv)

    def login_shell(self) -> list[str]:
        """The command that starts a shell for a person in the container, on a terminal."""
        return [*self._exec("-it"), "sh", "-c", _SHELL]

    def _exec(self, options: str) -> list[str]:
        if self.runtime == APPTAINER:
            return [*self.client, "exec", f"instance://{self.name}"]
        return [*self.client, "exec", options, *(["--user", self.user] if self.user else []), self.name]


CREATED_LABEL = "orch"
"""The label of the containers that orch creates."""
IDLE_S = 30
# The first process of a container that orch creates: it ends, and the container with it, once there is no other process for IDLE_S.
# /proc has the init of --init, this shell, and no more.
_WATCH = (
    "idle=0; while [ $idle -lt {polls} ]; do sleep 5; set -- /proc/[0-9]*; "
    "if [ $# -gt 2 ]; then idle=0; else idle=$((idle + 1)); fi; done"
)
# The container is created by the first connection. Its name is in use while another connection creates it, while it is being removed, and
# after a crash of the daemon; `rm` removes no container that runs.
_ENTER = (
    "client=$1 name=$2-$(id -u) create=$3 tries=50; shift 3; "
    'running() { [ "$($client container inspect --format "{{.State.Running}}" "$name" 2>/dev/null)" = true ]; }; '
    'until running; do errors=$(eval "$create" 2>&1 >/dev/null) && break; tries=$((tries - 1)); '
    'case $tries$errors in [1-9]*"in use"*) sleep 0.2; $client rm "$name" >/dev/null 2>&1;; '
    '*) echo "$errors" >&2; exit 125;; esac; done; '
    'exec $client exec -i "$name" "$@"'
)
# The user's folders and name, and the cards and adapters of the node.
_CREATE = (
    'case $work in "~/"*) work=$HOME/${work#"~/"};; esac; mkdir -p "$work" || exit; devices=; '
    'if [ -e /dev/infiniband ]; then devices="--device=/dev/infiniband --ulimit=memlock=-1"; fi; '
    'if [ -e /dev/nvidiactl ]; then devices="$devices $gpus"; fi; '
    'if [ -e /dev/gcu0 ]; then devices="$devices $gcus"; fi; '
    'if [ "$client" = podman ] && [ "$(id -u)" -gt 0 ]; then devices="$devices --userns=keep-id"; fi; '
    '$client run --detach --rm --init --network=host --ipc=host $devices --env=HOME="$HOME" --env=USER="$(id -un)" '
    '--env=LOGNAME="$(id -un)" --volume="$work:$work" --user="${user:-$(id -u):$(id -g)}" '
)


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """
    A container that orch creates from an image when it first starts a program in it, and that ends with the last program.

    It has the network, the IPC, the cards and the adapters of the node, and the user of the login; `workdir` and the `mounts` are the
    same folders as on the node unless a mount says otherwise. All runs and commands with these settings share it: a command that looks for
    the processes of a run, such as `gc`, must see them.
    """

    runtime: str
    image: str
    workdir: str
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    user: str | None = None
    sudo: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], workdir: str) -> ContainerImage:
        """The container in a plan that any version has stored."""
        known = known_fields(cls, {**settings, "workdir": workdir})
        return cls(**{**known, "mounts": tuple(known["mounts"]), "options": tuple(known["options"])})

    def __str__(self) -> str:
        return f"{self.runtime} container of {self.image}"

    @property
    def name(self) -> str:
        """The name of the container on the node, by its settings, without the uid of the login that follows it: users share none."""
        settings = repr((self.image, self.workdir, self.mounts, self.options, self.user))
        return f"orch-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    @property
    def client(self) -> list[str]:
        return _client(self.runtime, sudo=self.sudo)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that starts a program in the container, with its stdin, and creates the container if there is none."""
        words = ["sh", "-c", _HOME, "sh", *argv] if argv[0].startswith("~/") else argv
        return ["sh", "-c", _ENTER, "sh", " ".join(self.client), self.name, self._create(), *words]

    def inspect(self) -> list[str]:
        return ["sh", "-c", 'exec $1 container inspect "$2-$(id -u)"', "sh", " ".join(self.client), self.name]

    def to_try(self, argv: Sequence[str]) -> list[str]:
        """A short command by which a person starts the same program in a container of the image."""
        return [*self.client, "run", "--rm", self.image, *argv]

    def login_shell(self) -> list[str]:
        """The command that starts a shell for a person in the container, on a terminal."""
        enter = _ENTER.replace("exec -i", "exec -it")
        return ["sh", "-c", enter, "sh", " ".join(self.client), self.name, self._create(), "sh", "-c", _SHELL]

    def _create(self) -> str:
        """The line of shell that creates the container; its words are quoted."""
        begin = f"work={shlex.quote(self.workdir)} gpus={GPU_OPTIONS[self.runtime]} gcus={GCU_OPTION} user={shlex.quote(self.user or '')}; "
        mounts = [f"--volume={mount if ':' in mount else f'{mount}:{mount}'}" for mount in self.mounts]
        watch = _WATCH.format(polls=IDLE_S // 5)
        end = [f"--label={CREATED_LABEL}", *mounts, *self.options, "--entrypoint=sh", self.image, "-c", watch]
        return f'{begin}{_CREATE}--name="$name" {shlex.join(end)}'


Container: TypeAlias = ContainerName | ContainerImage


def _client(runtime: str, *, sudo: bool) -> list[str]:
    """The command of a runtime; sudo asks for no password, since there is no terminal."""
    return [*(["sudo", "-n"] if sudo else []), runtime]


class ContainerTransport:
    """Starts programs in a container of a node."""

    def __init__(self, outer: Transport, container: Container) -> None:
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
        return self.outer.command_to_try(self.container.to_try(argv))

    def close(self) -> None:
        self.outer.close()
