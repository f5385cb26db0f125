"""The table of environment variables: one row per variable, one module per library. Add a variable or a verdict there."""

from __future__ import annotations

from orchestrator.environment.table.enflame import ENFLAME
from orchestrator.environment.table.host import HOST
from orchestrator.environment.table.nccl import NCCL, UNDOCUMENTED
from orchestrator.environment.table.row import Row
from orchestrator.environment.table.torch import TORCH

VARIABLES: dict[str, Row] = {row.name: row for rows in (NCCL, TORCH, ENFLAME, HOST) for row in rows}

__all__ = ["UNDOCUMENTED", "VARIABLES", "Row"]
