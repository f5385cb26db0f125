"""The container of a node in which orch works over SSH and on this machine; that of Slurm's jobs is in slurm.py."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, model_validator

from orchestrator.inventory import fields
from orchestrator.names.addresses import pattern_check

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
    """A running container; `python`, `workdir` and `setup` are those inside, and programs start in it as `user`."""

    model_config = fields.STRICT

    name: Annotated[str, AfterValidator(_check_name)]
    runtime: Runtime = "docker"
    user: Annotated[str, AfterValidator(_check_user)] | None = None
    sudo: bool = False

    @model_validator(mode="after")
    def _check_runtime(self) -> NodeContainer:
        if self.runtime == "apptainer" and self.user is not None:
            raise ValueError("apptainer starts programs as the user of the login; delete user")
        return self
