"""
Joining the process group: device, rendezvous, group, self-test. Every entry point of the trainer calls this.

A rank first takes its device, then reports to the rendezvous. So a rank that is missing or has no device is named by all
the others before any of them waits in a collective.
"""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from typing import Any, Callable, Mapping, Sequence

import torch

from ..errors import (  # relative: scripts import this package under another name (trainer/scripts)
    NetworkError,
    UserError,
)
from ..values import Foreign
from .accelerators import Accelerator, choose
from .exit import limit
from .group import STOCK_BACKENDS, Group
from .rank import Rank
from .rendezvous import Rendezvous

START_S = 120.0
"""Default limit for the start of the group and its first collective, when all ranks are there: a wrong network setting shows then."""


def initialise(
    requested_device: str,
    timeout_s: float,
    env: Mapping[str, str],
    *,
    start_timeout_s: float = START_S,
    rendezvous: Rendezvous | None = None,
) -> Group:
    """
    Take the device, wait for the other ranks, join the group, and test device and group.

    Args:
        requested_device: auto, cuda, gcu or cpu.
        timeout_s: limit of a collective.
        env: MASTER_ADDR, MASTER_PORT and the variables that Rank reads.
        start_timeout_s: limit of the start of the group and its first collective, if below timeout_s.
        rendezvous: if the caller has opened it already.

    Raises:
        UserError: a rank has no usable device; on all ranks if their store is reachable.
        TrainerError: a rank is missing, or the test all-reduce gave a wrong sum.
    """

    def find() -> Accelerator:
        accelerator = choose(requested_device, torch)
        if accelerator.unusable_card and env.get("LOCAL_RANK", "0") == "0":  # once per node
            sys.stderr.write(f"WARNING: training on the CPU: {accelerator.unusable_card}, or say device=cpu\n")
        return accelerator

    return initialise_on(find, timeout_s, env, start_timeout_s=start_timeout_s, rendezvous=rendezvous)


def initialise_on(
    find: Callable[[], Accelerator],
    timeout_s: float,
    env: Mapping[str, str],
    *,
    start_timeout_s: float = START_S,
    rendezvous: Rendezvous | None = None,
    **more: Any,  # other arguments of init_process_group
) -> Group:
    """Like `initialise`, on the accelerator that `find` returns; a UserError it raises is this rank's problem."""
    rank = Rank.from_env(env)
    accelerator, device, problem = prepare(find, rank)
    if not rank.launched:
        if accelerator is None or problem:
            raise UserError(problem)
        return Group(rank, accelerator, device, None, f"1/1 ranks ready, backend none, device {device.type}")
    rendezvous = rendezvous or Rendezvous.open(rank, env, timeout_s)
    only_device = accelerator.only_device() if accelerator and not problem else ""
    rendezvous.check_all("device", problem, accelerator.name if accelerator else "", device=only_device)
    assert accelerator is not None  # a rank with a problem does not pass check_all
    limit_s = min(start_timeout_s, timeout_s)
    with limit(limit_s, late_start(accelerator.backend, limit_s), rendezvous):
        more = {**eager_start(accelerator, device), **more}
        join(accelerator, rendezvous, timeout=timedelta(seconds=timeout_s), **more)
        problem = _test_all_reduce(accelerator, rank, device)
        byte_type = torch.uint8 if problem or _carries_bytes(accelerator, rank, device) else torch.float32
    rendezvous.check_all("all-reduce", problem, device.type, kind=NetworkError)
    count = rank.world_size
    ready = f"{count}/{count} ranks ready, backend {accelerator.backend}, device {device.type}"
    return Group(rank, accelerator, device, rendezvous, ready, byte_type)


def late_start(backend: str, limit_s: float) -> str:
    """The error message for a group that did not start in time."""
    return (
        f"the group ({backend}) did not start within {limit_s:g} s, though all ranks are there: they reach the store of "
        "rank 0 but not each other. Look at the network of the nodes (orch check --level full) and at the variables of the library "
        "(orch env --explain); start_timeout=SECONDS of the shared trainer allows more, up to ddp_timeout, and ORCH_START_TIMEOUT of MMEngine"
    )


def eager_start(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """The argument by which NCCL connects when the group is made, and knows the device of barriers; torch >= 2.3."""
    if accelerator.name != "cuda":
        return {}
    known = inspect.signature(accelerator.distributed.init_process_group).parameters
    return {"device_id": device} if "device_id" in known else {}


def prepare(find: Callable[[], Accelerator], rank: Rank) -> tuple[Accelerator | None, torch.device, str]:
    """(accelerator, device, ""), or the part found so far and the reason why this rank cannot continue."""
    accelerator, device = None, torch.device("cpu")
    try:
        accelerator = find()
        device = _take_device(accelerator, rank)
    except UserError as exc:
        return accelerator, device, str(exc)
    return accelerator, device, ""


def join(
    accelerator: Accelerator,
    rendezvous: Rendezvous,
    name: str = "group",
    members: Sequence[int] | None = None,
    **more: Any,
) -> None:
    """
    Make the process group of these ranks, by default all; `name` is used once.
    Raises NetworkError: with the library's message.
    """
    rank, dist = rendezvous.rank, accelerator.distributed
    ranks = members if members is not None else range(rank.world_size)
    if accelerator.needs_address:
        address = {"init_method": f"tcp://{rendezvous.vendor_store_address()}"}
    else:
        address = {"store": rendezvous.store_for(name)}
    number = ranks.index(rank.global_rank)
    try:
        dist.init_process_group(accelerator.backend, rank=number, world_size=len(ranks), **address, **more)
    except (RuntimeError, ValueError) as exc:
        _reset_group_count(dist)
        raise NetworkError(f"rank {rank.global_rank} cannot join the group ({accelerator.backend}): {exc}") from exc


def _reset_group_count(distributed: Foreign) -> None:
    """Have the next group named as on ranks without a failure: torch counts groups that failed, and names are keys of the store."""
    c10d: Any = getattr(distributed, "distributed_c10d", None)
    if hasattr(c10d, "_world"):
        c10d._world.group_count = 0  # noqa: SLF001 -- there is no public function
    elif hasattr(c10d, "_group_count"):  # torch < 2.0
        c10d._group_count = 0  # noqa: SLF001 -- as above


def _take_device(accelerator: Accelerator, rank: Rank) -> torch.device:
    """Make the rank's device current and compute on it. Raises UserError with device and cause."""
    name, number = accelerator.device_string(rank.local_rank), accelerator.device_number(rank.local_rank)
    if number >= accelerator.device_count():
        raise UserError(
            f"local rank {rank.local_rank} has no device: this node shows {accelerator.device_count()} ({accelerator.name}); "
            f"start fewer ranks per node, or let each rank see all of them or a different one ({accelerator.visible_variable})"
        )
    try:
        accelerator.set_device(number)
        device = torch.device(name)
        total = float(torch.arange(4, dtype=torch.float32).to(device).sum().item())
        accelerator.synchronize()
    except (RuntimeError, IndexError, AssertionError) as exc:
        raise UserError(f"device {name} cannot be used: {exc}") from exc
    if total != sum(range(4)):
        raise UserError(f"device {name} computes wrongly: 0+1+2+3 gave {total}")
    return device


def _test_all_reduce(accelerator: Accelerator, rank: Rank, device: torch.device) -> str:
    """Sum 1..world_size over the group, exact in fp32; returns the problem, or ""."""
    probe = torch.tensor([float(rank.global_rank + 1)], dtype=torch.float32).to(device)
    try:
        accelerator.distributed.all_reduce(probe)
        total = float(probe.item())
    except RuntimeError as exc:
        return f"the test all-reduce failed: {exc}"
    expected = rank.world_size * (rank.world_size + 1) / 2
    return "" if total == expected else f"the test all-reduce gave {total:g}, expected {expected:g}"


def _carries_bytes(accelerator: Accelerator, rank: Rank, device: torch.device) -> bool:
    """Try every value of a byte in the two collectives that carry bytes, and agree in fp32, which was tested before."""
    if accelerator.backend in STOCK_BACKENDS:
        return True
    dist = accelerator.distributed
    values = torch.arange(256, dtype=torch.float32).to(torch.uint8)
    try:
        received = [torch.zeros_like(values).to(device) for _ in range(rank.world_size)]
        dist.all_gather(received, values.to(device))
        received.append((values if rank.is_main else torch.zeros_like(values)).to(device))
        dist.broadcast(received[-1], 0)
        is_right = all(torch.equal(tensor.cpu(), values) for tensor in received)
    except RuntimeError:
        is_right = False
    right_ranks = torch.tensor([float(is_right)]).to(device)
    dist.all_reduce(right_ranks)
    return float(right_ranks.item()) == rank.world_size
