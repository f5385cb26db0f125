"""DeepSpeed on the CPU: keep it from compiling an extension that it would not use."""

from __future__ import annotations

import os
from typing import Any


def need_no_compiler(module: Any) -> None:  # deepspeed.ops
    """Disable its shared-memory collectives, which need LOCAL_SIZE, a variable that only its own launcher sets."""
    if "LOCAL_SIZE" not in os.environ:
        getattr(module, "__compatible_ops__", {})["deepspeed_shm_comm"] = False
