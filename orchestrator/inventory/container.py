"""The container of a node in which orch works over SSH and on this machine; that of Slurm's jobs is in slurm.py."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, model_validator

from orchestrator.inventory import fields
from orchestrator.inventory.slurm import Image, Mount
from orchestrator.portable.names.addresses import pattern_check

_check_option = pattern_check(
    r"--[a-z][a-z0-9-]*(=.+)?",
    "an option of `run`",
    "one that begins with -- and has its value after =, as in --shm-size=16g",
)

Runtime: TypeAlias = Literal["docker", "podman", "apptainer"]
_check_name = pattern_check(
    r"[A-Za-z0-9][A-Za-z0-9_.-]*", "the name of a container", "letters, digits, _ . - (a letter or digit first)"
)
_check_user = pattern_check(
    r"[a-z0-9_][A-Za-z0-9_.-]*(:[a-z0-9_][A-Za-z0-9_.-]*)?",
    "a user of the container",
    "a name or number, or USER:GROUP",
)


class NodeContainer(BaseModel):
    """
    A container that runs already (`name`), or an image of which orch creates one (`image`).

    `python`, `workdir` and `setup` are those inside, and programs start in it as `user`.
    """

    model_config = fields.STRICT

    name: Annotated[str, AfterValidator(_check_name)] | None = None
    image: Image | None = None
    runtime: Runtime = "docker"
    mounts: tuple[Mount, ...] = ()
    options: tuple[Annotated[str, AfterValidator(_check_option)], ...] = ()
    user: Annotated[str, AfterValidator(_check_user)] | None = None
    sudo: bool = False

    @model_validator(mode="after")
    def _check_runtime(self) -> NodeContainer:
        if (self.name is None) == (self.image is None):
            raise ValueError("needs either name, of a running container, or image, to create one")
        if self.name is not None and (self.mounts or self.options):
            made = "with the mounts and options that it was created with; delete mounts and options"
            raise ValueError(f"{self.name} exists already, {made}")
        if self.runtime == "apptainer" and self.user is not None:
            raise ValueError("apptainer starts programs as the user of the login; delete user")
        if self.runtime == "apptainer" and self.image is not None:
            command = f"apptainer instance start {self.image} NAME"
            raise ValueError(f"start an instance on each node, and write its name: {command}")
        return self
