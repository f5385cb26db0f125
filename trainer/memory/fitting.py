"""Settings that fit a card, and the check of a training's memory before its first step. No torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Optional, Tuple

from trainer.config.config import TrainConfig
from trainer.config.load import with_ranks
from trainer.errors import UserError
from trainer.memory.estimate import PARTS, SELECTIVE, Moment, Shape, peak, state_bytes
from trainer.memory.shapes import known_shape, setup_of
from trainer.text import gigabytes

RESERVE = 0.9
"""The share of a card that estimates may fill: the rest is for the context of the device, its libraries and fragmentation."""
MEASURED = ("ddp", "fsdp2")
"""The strategies whose estimate was held to measured bytes."""
RECOMPUTE = (False, SELECTIVE, True)

Rows = List[Tuple[TrainConfig, Moment]]
Model = Tuple[Shape, int]
"""The shape, and the tokens of a sample."""


def rows(config: TrainConfig, model: Model, cards: int) -> Rows:
    """The settings of strategy and recomputation in the order of speed, what is gathered or computed twice last."""
    return list(_rows(config, model, cards))


def _rows(config: TrainConfig, model: Model, cards: int) -> Iterator[Tuple[TrainConfig, Moment]]:
    for strategy in MEASURED:
        for recompute in RECOMPUTE:
            fsdp = config.fsdp if strategy == "fsdp2" else type(config.fsdp)()
            setting = replace(config, strategy=strategy, activation_checkpointing=recompute, fsdp=fsdp)
            setting = with_ranks(setting, cards)
            yield setting, _peak(setting, model, cards)


def advice(config: TrainConfig, model: Model, cards: int, card_bytes: float) -> str:
    """The first setting that fits, with a smaller micro batch if none does with the given one."""
    micro_batch, least = config.micro_batch, float("inf")
    while micro_batch >= 1:
        smaller = replace(config, micro_batch=micro_batch)
        for setting, moment in rows(smaller, model, cards):
            least = min(least, moment.total)
            if moment.total <= RESERVE * card_bytes:
                words = [f"strategy={setting.strategy}", f"activation_checkpointing={_word(setting)}"]
                if micro_batch != config.micro_batch:
                    words.append(f"micro_batch={micro_batch} accumulation={-(-config.micro_batch // micro_batch)}")
                return f"fits first: {' '.join(words)}"
        micro_batch //= 2
    return f"none fits; the least is {gigabytes(least)}: take more cards, or shorter samples"


def checked_memory(config: TrainConfig, parameters: int, cards: int, card_bytes: Optional[int]) -> str:
    """
    Compare a training's memory with that of a card, before the first step.

    Args:
        parameters: of the whole model, all of which are trained unless there are adapters.
        card_bytes: the memory of the smallest card; None if it is not known, as on a CPU.

    Returns:
        A line for the log, "" if nothing is known: the estimate for a GPT and a Llama, the state alone for other models.

    Raises:
        UserError: the state alone is larger than a card.
    """
    if card_bytes is None or config.lora.rank:
        return ""
    state = sum(state_bytes(parameters, setup_of(config, cards, 0)).values())
    model = known_shape(config) if config.strategy in MEASURED else None
    fitting = advice(config, model, cards, card_bytes) if model else "split it by strategy=fsdp2, or over more cards"
    if state > card_bytes:
        raise UserError(
            f"weights, gradients and optimizer take {gigabytes(state)} on each of {cards} cards with strategy={config.strategy}, and a card "
            f"has {gigabytes(card_bytes)}; {fitting}"
        )
    if model is None:
        return f"memory: weights, gradients and optimizer take {gigabytes(state)} of {gigabytes(card_bytes)} on a card; activations are not known"
    moment = _peak(config, model, cards)
    parts = ", ".join(f"{part} {gigabytes(moment.parts[part])}" for part in PARTS if moment.parts[part])
    line = (
        f"memory: about {gigabytes(moment.total)} of {gigabytes(card_bytes)} on a card, in the {moment.name}: {parts}"
    )
    return line if moment.total <= RESERVE * card_bytes else f"WARNING: {line}; it may not fit: {fitting}"


def _peak(config: TrainConfig, model: Model, cards: int) -> Moment:
    shape, context = model
    return peak(shape, setup_of(config, cards, context))


def _word(config: TrainConfig) -> str:
    return str(config.activation_checkpointing).lower()
