"""
TG1 distributed: a fork of c10d for ECCL alone, beside a stock torch.distributed without ECCL.

Gloo transfers the numbers, in a separate group: torch.distributed has none, as on a real T20.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any, Dict, Tuple
from urllib.parse import parse_qsl, urlsplit

import torch
from torch.distributed import PrefixStore, ReduceOp, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions, ProcessGroupGloo

from tests.doubles.contract import need_device, record_call
from tests.doubles.tensors import is_on_card

_WORLD: Dict[str, Any] = {}  # the process has one default group
_DEFAULT_TIMEOUT = timedelta(minutes=30)


class Backend:
    """Only these two; anything else reads as undefined (TG1 distributed_c10d.py)."""

    UNDEFINED = "undefined"
    ECCL = "eccl"

    def __new__(cls, name: Any) -> Any:
        return getattr(Backend, name.upper(), Backend.UNDEFINED)


if os.environ.get("GCU_DOUBLE_NO_ECCL"):
    warnings.warn("import ProcessGroupECCL failed", stacklevel=1)


def is_eccl_available() -> bool:
    return not os.environ.get("GCU_DOUBLE_NO_ECCL")


def is_initialized() -> bool:
    return bool(_WORLD)


def init_process_group(
    backend: str,
    init_method: Any = None,
    timeout: Any = _DEFAULT_TIMEOUT,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
) -> None:
    """Refuses a wrong backend after the rendezvous, as the real one does."""
    if not isinstance(timeout, timedelta):
        raise RuntimeError("Expected timeout argument to be of typedatetime.timedelta")  # theirs
    if _WORLD:
        raise RuntimeError("trying to initialize the default process group twice!")
    assert store is None or init_method is None, "Cannot specify both init_method and store."
    if store is not None:
        assert world_size > 0, "world_size must be positive if using store"
        assert rank >= 0, "rank must be non-negative if using store"
    need_device("init_process_group")
    if store is None:
        store, rank, world_size = _rendezvous(init_method or "env://", rank, world_size, timeout)
    if Backend(backend) != Backend.ECCL:
        raise RuntimeError("only support eccl")
    if not is_eccl_available():
        raise RuntimeError("Distributed package doesn't have ECCL built in")
    record_call(f"init_process_group {backend} {timeout.total_seconds():g}")
    _WORLD["group"] = ProcessGroupGloo(PrefixStore("default_pg", store), rank, world_size, timeout)
    barrier()


def _rendezvous(url: str, rank: int, world_size: int, timeout: timedelta) -> Tuple[Any, int, int]:
    """TG1 distributed/rendezvous.py: with torchrun's store every rank is a client, whatever the URL."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host, port = parts.hostname or "", parts.port or 0
    if parts.scheme == "env":
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise ValueError(
                "Error initializing torch.distributed using env:// rendezvous: "
                f"environment variable {missing[0]} expected, but not set"
            )
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        query = {"rank": os.environ["RANK"], "world_size": os.environ["WORLD_SIZE"], **query}
    elif parts.scheme != "tcp":
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}://")
    rank = rank if rank >= 0 else int(query["rank"])
    world_size = world_size if world_size > 0 else int(query["world_size"])
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store = TCPStore(host, port, world_size, rank == 0 and not agents, timeout)
    prefix = f"/worker/attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}" if agents else "vendor"
    return PrefixStore(prefix, store), rank, world_size


def _get_default_group() -> Any:
    if not _WORLD:
        raise RuntimeError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    return _WORLD["group"]


def _check(*tensors: Any) -> None:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise RuntimeError("Invalid function argument. Expected parameter `tensor` to be of type torch.Tensor.")
        if not is_on_card(tensor):
            raise RuntimeError("Tensors must be GCU and dense")  # TG2's words; the T20's are inside its closed library
        if tensor.dtype == torch.uint8 and os.environ.get("GCU_DOUBLE_NO_UINT8"):  # unknown of the closed library
            raise RuntimeError("Input tensor data type is not supported for ECCL process group: Byte")  # TG2's words


def destroy_process_group(group: Any = None) -> None:  # there is one
    _get_default_group()
    _WORLD.clear()
    record_call("destroy_process_group")


def get_rank(group: Any = None) -> int:  # there is one
    return int(_get_default_group().rank())


def get_world_size(group: Any = None) -> int:  # there is one
    return int(_get_default_group().size())


def get_local_rank() -> int:
    return int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else get_rank()


def get_backend(group: Any = None) -> str:  # there is one
    _get_default_group()
    return Backend.ECCL


def barrier(group: Any = None) -> None:  # there is one
    """Gloo's own, without a tensor."""
    _get_default_group().barrier().wait()


def broadcast(tensor: torch.Tensor, src: int, group: Any = None) -> None:  # there is one
    _check(tensor)
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = src, 0
    _get_default_group().broadcast([tensor], options).wait()


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None) -> None:  # there is one
    _check(tensor)
    options = AllreduceOptions()
    options.reduceOp = op
    _get_default_group().allreduce([tensor], options).wait()


def all_gather(tensor_list: Any, tensor: torch.Tensor, group: Any = None) -> None:  # there is one
    _check(*tensor_list, tensor)
    _get_default_group().allgather([tensor_list], [tensor]).wait()
