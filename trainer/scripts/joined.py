"""The process group of a script's rank, by which orch notices ranks that train separately."""

from __future__ import annotations

import os
import sys
from typing import Any, List

from .devices import warn

SEPARATE = "ORCH_SEPARATE"  # 1: the user has declared that the ranks train separately
# Libraries that join ranks without torch.distributed: with one of these, a rank without a process group may not be alone.
JOINING_LIBRARIES = ("horovod", "bagua", "byteps", "hivemind", "flwr", "ray", "torch_xla", "smdistributed", "jax")

# `Any` below stands for torch, which is not imported here.


def group_of(distributed: Any) -> List[int] | None:  # noqa: ANN401
    """The number of this rank in its process group, and the group's size: 0 and 1 without a group. None if that proves nothing."""
    # after a restart by torchrun, the files of ranks with other numbers may be left
    if os.environ.get(SEPARATE) == "1" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return None
    for module in (distributed, sys.modules["torch"].distributed):
        if module.is_available() and module.is_initialized():
            return [module.get_rank(), module.get_world_size()]
    return None if _may_be_joined() else [0, 1]


def _may_be_joined() -> bool:
    """True if something else than a process group of torch may join the ranks."""
    mpi = getattr(sys.modules.get("mpi4py.MPI"), "COMM_WORLD", None)
    rpc = getattr(sys.modules.get("torch.distributed.rpc.api"), "_is_current_rpc_agent_set", None)
    by_mpi = mpi is not None and mpi.Get_size() > 1
    return by_mpi or bool(rpc and rpc()) or any(name in sys.modules for name in JOINING_LIBRARIES)


def warn_of_mpi_alone(module: Any) -> None:  # noqa: ANN401 -- mpi4py.MPI
    """Warn if MPI has started this rank as the only one, although the launch has more."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1" and os.environ.get(SEPARATE) != "1" and module.COMM_WORLD.Get_size() == 1:
        warn(
            f"for MPI this rank is rank 0 of 1, although the launch has {ranks} ranks: only mpirun numbers the ranks of MPI; "
            "start it once per node with --per-node --until-head (docs/programs.md), or join the ranks without MPI"
        )
