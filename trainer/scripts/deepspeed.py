"""DeepSpeed on the CPU, where it would compile at its first start what is of no use then."""

from __future__ import annotations

import os
from typing import Any


def need_no_compiler(module: Any) -> None:  # noqa: ANN401 -- deepspeed.ops
    """Do without its collectives over shared memory: it uses them by LOCAL_SIZE, which only its own launcher sets."""
    if "LOCAL_SIZE" not in os.environ:
        getattr(module, "__compatible_ops__", {})["deepspeed_shm_comm"] = False
