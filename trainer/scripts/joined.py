"""The process group of a script's rank, by which orch notices ranks that train separately."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, List

from ..errors import NO_RETRY, UserError, report
from .devices import warn

SEPARATE = "ORCH_SEPARATE"  # 1: the user has declared that the ranks train separately
# Libraries that join ranks without torch.distributed: with one of these, a rank without a process group may not be alone, unless
# Horovod names its own.
JOINING_LIBRARIES = ("horovod", "bagua", "byteps", "hivemind", "flwr", "ray", "torch_xla", "smdistributed", "jax")
_HOROVOD: List[int] = []  # the last group of Horovod

# `Any` below stands for the libraries' classes, which are not imported here.


class SeparateTrainings(UserError):
    """Each process of the launch would train alone."""

    exit_code = NO_RETRY


def group_of(distributed: Any) -> List[int] | None:
    """The number of this rank in its process group, and the group's size: 0 and 1 without a group. None if that proves nothing."""
    # after a restart by torchrun, the files of ranks with other numbers may be left
    if os.environ.get(SEPARATE) == "1" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return None
    for module in (distributed, sys.modules["torch"].distributed):
        if module.is_available() and module.is_initialized():
            return [module.get_rank(), module.get_world_size()]
    if "horovod.torch" in sys.modules:
        return _group_of_horovod(sys.modules["horovod.torch"])
    return None if _may_be_joined() else [0, 1]


def _group_of_horovod(module: Any) -> List[int] | None:
    """None before hvd.init(), and the last one after hvd.shutdown()."""
    if module.is_initialized():
        _HOROVOD[:] = [module.rank(), module.size()]
    return list(_HOROVOD) or None


def _may_be_joined() -> bool:
    """Something else than a process group of torch may join the ranks."""
    mpi = getattr(sys.modules.get("mpi4py.MPI"), "COMM_WORLD", None)
    rpc = getattr(sys.modules.get("torch.distributed.rpc.api"), "_is_current_rpc_agent_set", None)
    by_mpi = mpi is not None and mpi.Get_size() > 1
    return by_mpi or bool(rpc and rpc()) or any(name in sys.modules for name in JOINING_LIBRARIES)


def warn_of_mpi_alone(module: Any) -> None:  # mpi4py.MPI
    """Warn if MPI has started this rank as the only one, although the launch has more."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1" and os.environ.get(SEPARATE) != "1" and module.COMM_WORLD.Get_size() == 1:
        warn(
            f"for MPI this rank is rank 0 of 1, although the launch has {ranks} ranks: only mpirun numbers the ranks of MPI; "
            "start it once per node with --per-node --until-head (docs/programs.md), or join the ranks without MPI"
        )


def warn_of_ray_alone(module: Any) -> None:  # ray._private.worker
    """
    Warn if ray.init() starts a cluster in a process that is not the first of the launch: each process then has one.

    It is no error: that cluster may only load data. The first process alone may be that of a program with --until-head.
    """
    init = module.init

    @functools.wraps(init)
    def init_and_warn(*args: Any, **kwargs: Any) -> Any:
        result, count = init(*args, **kwargs), _started_by_orch()
        node, number = getattr(module, "_global_node", None), os.environ.get("RANK") or os.environ.get("NODE_RANK", "0")
        if count > 1 and number != "0" and node is not None and node.is_head():
            warn(
                f"ray.init() has started a cluster for this process alone, and the launch has {count}: a training by Ray runs once in "
                "each; start it with --per-node --until-head and the script ray.sh of docs/programs.md"
            )
        return result

    module.init = init_and_warn


def refuse_tensorflow_alone(module: Any) -> None:  # tensorflow.python.distribute.collective_all_reduce_strategy
    """End a process that would train alone, as TensorFlow's strategy for several workers does without a list of them."""
    strategy = module.CollectiveAllReduceStrategy  # tf.distribute.MultiWorkerMirroredStrategy
    construct = strategy.__init__

    @functools.wraps(construct)
    def construct_joined(self: Any, cluster_resolver: Any = None, *args: Any, **kwargs: Any) -> None:
        count = _started_by_orch()
        if count > 1 and cluster_resolver is None and not os.environ.get("TF_CONFIG"):
            error = SeparateTrainings(
                f"MultiWorkerMirroredStrategy without TF_CONFIG trains in this process alone, and the launch has {count}: set TF_CONFIG "
                f'as in docs/programs.md; if they are meant to train separately, set {SEPARATE}: "1" in env'
            )
            sys.exit(report(error, os.environ))
        construct(self, cluster_resolver, *args, **kwargs)

    strategy.__init__ = construct_joined


def _started_by_orch() -> int:
    """The number of processes of the launch that would be one training: its ranks, or with --per-node one per node; 1 if they are separate."""
    if os.environ.get(SEPARATE) == "1":
        return 1
    return int(os.environ.get("WORLD_SIZE") or os.environ.get("NNODES") or 1)


class OwnHost(UserError):
    """The program has replaced the address of rank 0 by one that is each node itself."""

    exit_code = NO_RETRY


def refuse_own_host(module: Any) -> None:  # torch.distributed.rendezvous
    """
    End a rank that would wait for rank 0 on its node, although rank 0 is on another one.

    As after `os.environ["MASTER_ADDR"] = "localhost"`, which tutorials have for a single node. Otherwise all ranks wait until the timeout of the group, 30 minutes.
    """
    connect = getattr(module, "_create_c10d_store", None)
    node, head = os.environ.get("ORCH_NODE", ""), os.environ.get("ORCH_NODE_ADDRESSES", "").partition(",")[0]
    if connect is None or os.environ.get("ORCH_NODE_RANK", "0") == "0" or not head or _is_loopback(head):
        return
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("NPROC_PER_NODE") or 0)

    @functools.wraps(connect)
    def connect_elsewhere(hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        if _is_loopback(hostname) and world_size > local > 0 and os.environ.get(SEPARATE) != "1":
            text = f"{node} looks for rank 0 at {hostname}, which is {node} itself, but rank 0 is on another node"
            sys.exit(report(OwnHost(f"{text}; the program sets MASTER_ADDR: orch has set it to {head}"), os.environ))
        return connect(hostname, port, rank, world_size, *args, **kwargs)

    module._create_c10d_store = connect_elsewhere  # it has no other name


def _is_loopback(address: str) -> bool:
    return address.lower() in ("localhost", "::1", "[::1]") or address.startswith("127.")
