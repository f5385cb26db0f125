"""The present state of a run while it is watched, as the owner of the run sends it to the command that watches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.stored import known_fields
from orchestrator.verdict.training import Training


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run while it is watched."""

    state: str
    """As in the record: RUNNING, PENDING, …"""
    begun_s: float
    """When the run was launched, in seconds since 1970."""
    attempt: int = 1
    nodes: str = ""
    """A host list."""
    waits: str | None = None
    """The nodes for which a restart waits, and until when, or the reason of Slurm's queue; None if the run does not wait."""
    training: Training | None = None
    """None before the first step, and of a program that reports none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveRun:
        """From `to_json`; fields of another version of orch are ignored."""
        known = known_fields(cls, data)
        training = known.get("training")
        return cls(**{**known, "training": training and Training(**known_fields(Training, training))})
