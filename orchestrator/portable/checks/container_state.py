"""A container as its runtime describes it, and the line that creates it again with other options."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "host"
GPU_OPTIONS = {"docker": "--gpus=all", "podman": "--device=nvidia.com/gpu=all"}
"""The option of each runtime that gives a container all NVIDIA cards of the node."""
GCU_OPTION = "--privileged"


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
    is_of_image: bool = False
    """orch has created it from the image in the inventory."""

    def __str__(self) -> str:
        return f"{self.runtime} container {self.name}"

    @property
    def runtime(self) -> str:
        return self.client.split()[-1]

    def hidden_cards(self, ranks: int) -> str:
        """The accelerator of which the node has enough cards for the ranks; empty if it has too few, or they are not known."""
        return next((kind for kind, number in self.host_cards.items() if number >= ranks), "")

    def card_option(self, accelerator: str) -> str:
        """The option that gives it all cards of the node; empty for apptainer, which takes none afterwards."""
        return GCU_OPTION if accelerator == "gcu" else GPU_OPTIONS.get(self.runtime, "")

    def recreated_with(self, *options: str) -> str:
        """The step that gives it these options: a line that creates it again, and keeps the files in it and the old container."""
        if self.is_of_image:
            return f"write it in container: of the inventory: options: [{', '.join(options)}]"
        changed = {option.partition("=")[0] for option in options} - {"--ulimit", "--volume", "--device"}
        kept = [option for option in self.options if option.partition("=")[0] not in changed]
        before, image = f"{self.name}-before", f"{self.name}-image"
        run = f"{self.client} run -dit {shlex.join(['--name', self.name, *kept, *options, image])}"
        return (
            f"{self.client} commit {self.name} {image} && {self.client} stop {self.name} && "
            f"{self.client} rename {self.name} {before} && {run}"
        )
