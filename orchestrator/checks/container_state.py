"""A container as its runtime describes it, and the line that creates it again with other options."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "host"
CARD_OPTIONS = {"cuda": "--gpus=all", "gcu": "--privileged"}
"""The option that gives a container all cards of the node."""


@dataclass(frozen=True)
class ContainerState:
    """
    A container, as docker or podman describe it.

    Of apptainer, whose instances share the network and the files of the node, no more is known than that it runs.
    """

    client: str
    """The command of the runtime on the node, as in `sudo -n docker`."""
    name: str
    status: str
    """running, exited, paused, restarting, created, or another word of the runtime."""
    exit_code: int = 0
    is_oom: bool = False
    """The kernel has killed a process in it for lack of memory."""
    image: str = ""
    image_id: str = ""
    network: str = HOST
    mounts: tuple[str, ...] | None = None
    """The folders inside that are mounted; None: not known."""
    options: tuple[str, ...] = ()
    """The options of `run` that it was created with, as far as they matter to training."""
    host_cards: Mapping[str, int] = field(default_factory=dict)
    """The cards of the node itself by their device files, by accelerator."""

    def __str__(self) -> str:
        return f"{self.client.split()[-1]} container {self.name}"

    def recreated_with(self, *options: str) -> str:
        """The line that creates it again with these options, and keeps the files in it and the old container."""
        changed = {option.partition("=")[0] for option in options} - {"--ulimit", "--volume", "--device"}
        kept = [option for option in self.options if option.partition("=")[0] not in changed]
        before, image = f"{self.name}-before", f"{self.name}-image"
        run = f"{self.client} run -dit {shlex.join(['--name', self.name, *kept, *options, image])}"
        return (
            f"{self.client} commit {self.name} {image} && {self.client} stop {self.name} && "
            f"{self.client} rename {self.name} {before} && {run}"
        )
