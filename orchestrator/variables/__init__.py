"""The table of environment variables: one row per variable, one module per library. Add a variable or a verdict there."""

from __future__ import annotations

from orchestrator.variables.enflame import ENFLAME
from orchestrator.variables.host import HOST
from orchestrator.variables.nccl import NCCL, UNDOCUMENTED
from orchestrator.variables.row import Row
from orchestrator.variables.torch import TORCH

VARIABLES: dict[str, Row] = {row.name: row for rows in (NCCL, TORCH, ENFLAME, HOST) for row in rows}

__all__ = ["UNDOCUMENTED", "VARIABLES", "Row"]
