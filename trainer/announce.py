"""The first log lines of a training: ranks, model, data and batch."""

from __future__ import annotations

from typing import Mapping

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.memory.fitting import checked_memory
from trainer.runtime.group import Group
from trainer.runtime.rank import Rank
from trainer.runtime.seeds import determinism_warning
from trainer.tasks.attention import AttentionShape, attention_lines
from trainer.text import gigabytes


def announce(group: Group, config: TrainConfig, *, sizes: Mapping[str, int], frozen: int, data: str) -> None:
    """Rank 0 prints the training, other ranks their device; `sizes` are those of the trained parameters, `frozen` that of the others."""
    log_line(group.ready_message)
    if not group.rank.is_main:
        return
    trained = sum(sizes.values())
    beside = f"{trained} of them trained, " if frozen else ""
    log_line(
        f"model {trained + frozen} parameters, {beside}{data}, {config.steps} steps, "
        f"{computation(config)}, {config.strategy}"
    )
    warning = determinism_warning(config, group.accelerator.name)
    if warning:
        log_line(warning)
    log_line(batch_arithmetic(config, group.rank))
    if config.strategy == "fsdp2" and config.accumulation > 1:
        log_line(accumulation_cost(config, sum(sizes.values()), group.rank.world_size))


def announce_memory(group: Group, config: TrainConfig, parameters: int) -> None:
    """
    Rank 0 prints what the training takes of a card's memory.
    Raises UserError: the same on all ranks; the state alone is larger than a card.
    """
    card_bytes = group.accelerator.memory_bytes()
    line = group.on_all(lambda: checked_memory(config, parameters, group.rank.world_size, card_bytes))
    if line and group.rank.is_main:
        log_line(line)


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


def accumulation_cost(config: TrainConfig, parameters: int, ranks: int) -> str:
    """
    The memory and the traffic of both values of fsdp.accumulate, per rank.

    Gradients are fp32. A ring reduce-scatter of B bytes over R ranks sends B (R - 1) / R bytes per rank (Thakur et al. 2005, doi
    10.1177/1094342005051521).
    """
    shards = ranks // config.fsdp.replicas
    whole, once = 4 * parameters, 4 * parameters * (shards - 1) // shards
    is_sharded = config.fsdp.accumulate == "sharded"
    sent = once * (config.accumulation if is_sharded else 1)
    kept = whole // shards if is_sharded else whole
    change = (
        f"whole would keep {gigabytes(whole)} and send {gigabytes(once)}"
        if is_sharded
        else f"sharded would keep {gigabytes(whole // shards)} and send {gigabytes(once * config.accumulation)}"
    )
    return (
        f"fsdp.accumulate={config.fsdp.accumulate}: a rank keeps {gigabytes(kept)} of gradients between the {config.accumulation} micro "
        f"batches of a step, and sends {gigabytes(sent)} a step; {change}"
    )


def batch_arithmetic(config: TrainConfig, rank: Rank) -> str:
    """The effective batch size, written as a product."""
    per_node, rest = divmod(rank.world_size, rank.nodes)
    ranks = f"ranks {rank.world_size}" if rest else f"devices {per_node} x nodes {rank.nodes}"
    effective = config.micro_batch * rank.world_size * config.accumulation
    return f"batch {effective} = micro_batch {config.micro_batch} x {ranks} x accumulation {config.accumulation}"
