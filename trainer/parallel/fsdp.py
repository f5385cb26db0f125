"""FSDP2, torch's fully_shard: parameters, gradients and optimizer state sharded over all ranks, or those of a replica, block by block."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.optim.clip import clip_sharded_gradients
from trainer.optim.ema import Ema
from trainer.optim.optimizer import make_optimizer
from trainer.parallel.base import TorchStrategy
from trainer.parallel.buffers import Buffers, refuse_batch_norm
from trainer.parallel.building import build_fillable, build_whole, fill, materialise, name_counts, prepare, sizes_of
from trainer.parallel.compiling import compile_blocks
from trainer.parallel.parts import Part
from trainer.runtime.group import Group
from trainer.runtime.seeds import seed_everything
from trainer.tasks.base import Task, draws_weights
from trainer.tasks.lora import narrow_frozen_weights
from trainer.values import Foreign, Model

DTensor = Any  # newer than torch 1.10


class Fsdp2(TorchStrategy):
    """Shards stay fp32; with bf16 or fp16, blocks are gathered and computed in that type."""

    def __init__(self, group: Group, config: TrainConfig, task: Task) -> None:
        super().__init__(group, config, task)
        empty = build_fillable(task, config)
        if empty is not None and shards_mixed_types():
            narrow_frozen_weights(empty, config.precision)
        unfilled = self._build_unfilled() if empty is None else None
        model = empty or unfilled or build_whole(group, config, task)
        self.sizes, self.buffers = sizes_of(model), Buffers(model)
        refuse_batch_norm(model, config)
        blocks = task.blocks(model)
        if config.compile:
            compile_blocks(model, blocks, task.ends(model))
        self.model = shard(model, units(model, blocks, task.ends(model)), group, config)
        self.unwrapped_model = self.model
        if empty is not None:
            self.model.to_empty(device=group.device)
            fill(task, self.model, self.put if draws_weights(task) else zero)
        elif unfilled is not None:
            materialise(self.model, group.device)
        self.optimizer = make_optimizer(self.model, config.lr, config.optim, task.param_group)
        self.ema = Ema(self.optimizer, config.optim.ema)

    def _build_unfilled(self) -> torch.nn.Module | None:
        """Build a model whose weights are all loaded later, without memory for them; None if the task has none."""
        seed_everything(self.config.seed, self.group.accelerator)
        model = self.task.build_unfilled()
        if model is None:
            return None
        if shards_mixed_types():
            narrow_frozen_weights(model, self.config.precision)
        return prepare(self.task, self.config, model)

    def update(self, lr: float, loss: torch.Tensor, *, is_good: torch.Tensor) -> torch.Tensor:
        norm = super().update(lr, loss, is_good=is_good)
        self.buffers.broadcast(self.model, self.group)
        return norm

    def state(self) -> Dict[str, Any]:
        api = importlib.import_module("torch.distributed.checkpoint.state_dict")
        options = api.StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = api.get_state_dict(self.model, self.optimizer, options=options)
        moments = {name: of_name for name, of_name in optimizer.get("state", {}).items() if of_name}
        state: Dict[str, Any] = {"model": model, "moments": moments}
        return {**state, "scaler": self.scaler.state_dict()} if self.scaler else state

    def part(self, key: str, tensor: DTensor) -> Part:
        mesh = tensor.device_mesh
        start = first_row(tensor.shape[0], mesh.size(-1), mesh.get_local_rank(-1))
        replica = mesh.get_local_rank(0) if mesh.ndim > 1 else 0
        row_size = tensor.shape[1:].numel()
        return Part(
            key,
            tuple(tensor.shape),
            start * row_size,
            tensor.to_local(),
            replica=replica,
            replicas=self.config.fsdp.replicas,
        )

    def micro_batch(self, *, last: bool) -> ContextManager[None]:
        """Each micro batch reduces to shards, which are fp32; between replicas, or with fsdp.accumulate=whole, only the last one."""
        self.model.set_requires_gradient_sync(last or self.config.fsdp.accumulate == "sharded")
        self.model.set_requires_all_reduce(last)
        return contextlib.nullcontext()

    def computing(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def without_gradients(self) -> Iterator[Any]:
        with super().without_gradients() as model:
            yield model
        # FSDP2 keeps some weights whole after a forward pass, by default those of the root; the backward pass shards them.
        for module in self.model.modules():
            if hasattr(module, "reshard"):
                module.reshard()

    def put(self, shards: DTensor, whole: Callable[[], torch.Tensor]) -> None:
        distribute = importlib.import_module("torch.distributed.tensor").distribute_tensor
        mine = scattered(shards, whole, is_main=self.group.rank.is_main)
        shards.copy_(distribute(mine.to(self.group.device), shards.device_mesh, shards.placements))

    def clip(self, limit: float) -> torch.Tensor:
        return clip_sharded_gradients(self.model.parameters(), limit)


def shards_mixed_types() -> bool:
    """fully_shard takes frozen weights of another type than the trained ones; earlier versions want one type in each unit."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 8)


def zero(shards: DTensor, _: object) -> None:
    """Set the shards of a tensor that is loaded later, without a message to other ranks."""
    shards.to_local().zero_()


def first_row(rows: int, ranks: int, rank: int) -> int:
    """The first row of a rank's shard: fully_shard splits as torch.chunk does."""
    return min(rows, rank * -(-rows // ranks))


def scattered(shards: torch.Tensor, whole: Callable[[], torch.Tensor], *, is_main: bool) -> torch.Tensor:
    """The whole tensor on rank 0, and empty memory of the same size on the others: a scatter needs one dtype on all ranks."""
    return whole().to(shards.dtype) if is_main else torch.empty(shards.shape, dtype=shards.dtype)


def units(
    model: torch.nn.Module, blocks: Sequence[torch.nn.Module], ends: Sequence[Sequence[torch.nn.Module]]
) -> List[List[torch.nn.Module]]:
    """
    The modules to be gathered together: the blocks, then the ends.

    A weight that two units share stays in the root: sharded twice, it would be duplicated.
    """
    total = name_counts(model)
    proposed = [*([block] for block in blocks), *map(list, ends)]
    counted = ((unit, sum(map(name_counts, unit), Counter[torch.nn.Parameter]())) for unit in proposed)
    return [unit for unit, counts in counted if all(total[weight] == count for weight, count in counts.items())]


def shard(
    model: torch.nn.Module, parts: Sequence[List[torch.nn.Module]], group: Group, config: TrainConfig
) -> Model:  # a class made by fully_shard
    """Shard each of the units(), then the rest; changes `model` in place and returns it."""
    api = importlib.import_module("torch.distributed.fsdp")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    policy = api.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    reshard = None if config.fsdp.reshard else False  # None: all but the root, whose weights are needed again at once
    mesh = make_mesh(group, config)
    for unit in parts:
        frees = config.fsdp.reshard and unit is not parts[-1]  # the last one is needed again at once
        whole = unit if len(unit) > 1 else unit[0]
        api.fully_shard(whole, mesh=mesh, mp_policy=policy, reshard_after_forward=frees)
    api.fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return model


def make_mesh(group: Group, config: TrainConfig) -> Foreign:  # a DeviceMesh
    """All ranks in a row; or a row per replica, of consecutive ranks."""
    make = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
    ranks, replicas = group.rank.world_size, config.fsdp.replicas
    if replicas == 1:
        return make(group.device.type, (ranks,))
    mesh = make(group.device.type, (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
    group.set_timeout(config.ddp_timeout)  # the groups of rows and columns began with torch's default
    return mesh
