"""The first log lines of a training: ranks, model, data and batch."""

from __future__ import annotations

from typing import Mapping

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.runtime.group import Group
from trainer.runtime.rank import Rank
from trainer.runtime.seeds import determinism_warning
from trainer.tasks.attention import AttentionShape, attention_lines


def announce(group: Group, config: TrainConfig, *, sizes: Mapping[str, int], data: str, work_per_step: str) -> None:
    """Rank 0 prints the training, other ranks their device; `sizes` are the sizes of all parameters."""
    log_line(group.ready_message)
    if not group.rank.is_main:
        return
    log_line(
        f"model {sum(sizes.values())} parameters, {data}, {work_per_step} a step, {config.steps} steps, "
        f"{computation(config)}, {config.strategy}"
    )
    warning = determinism_warning(config, group.accelerator.name)
    if warning:
        log_line(warning)
    log_line(batch_arithmetic(config, group.rank))


def announce_attention(group: Group, config: TrainConfig, shape: AttentionShape | None) -> None:
    """Rank 0 prints the kernel of the model's attention, if it is known."""
    if shape is not None and group.rank.is_main:
        for line in attention_lines(shape, config.precision, group.device):
            log_line(line)


def computation(config: TrainConfig) -> str:
    """The precision, and how far a 16-bit one goes under the strategy (docs/strategies.md)."""
    if config.precision == "fp32":
        return config.precision
    extent = "by autocast" if config.strategy in ("ddp", "zero0") else "in all layers"
    return f"{config.precision} {extent}" + (", linear layers of the blocks in fp8" if config.fp8 else "")


def batch_arithmetic(config: TrainConfig, rank: Rank) -> str:
    """The effective batch size, written as a product."""
    per_node, rest = divmod(rank.world_size, rank.nodes)
    ranks = f"ranks {rank.world_size}" if rest else f"devices {per_node} x nodes {rank.nodes}"
    effective = config.micro_batch * rank.world_size * config.accumulation
    return f"batch {effective} = micro_batch {config.micro_batch} x {ranks} x accumulation {config.accumulation}"
