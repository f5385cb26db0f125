"""`python -m trainer plan`: a table of the memory on one card, by strategy and recomputation. No torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Sequence, Tuple

from trainer.config.config import GPT_TASK, TrainConfig, load_config, with_ranks
from trainer.errors import UserError
from trainer.memory.estimate import PARTS, SELECTIVE, Moment, peak
from trainer.memory.shapes import gpt_shape, setup_of

RESERVE = 0.9
"""The share of a card that estimates may fill: the rest is for the context of the device, its libraries and fragmentation."""
STRATEGIES = ("ddp", "fsdp2")
RECOMPUTE = (False, SELECTIVE, True)


def plan(words: Sequence[str]) -> str:
    """
    The table for `cards=N card_memory=GB` and settings of a training.

    Raises:
        UserError: a wrong setting, or a task whose activations are unknown.
    """
    cards, words = _number(words, "cards", 1)
    gigabytes, words = _number(words, "card_memory", 80)
    config = load_config(None, words)
    if config.task != GPT_TASK:
        raise UserError(
            f"plan: knows the activations of the GPT only, not those of task={config.task}; name model.size=7b"
        )
    rows = list(_rows(config, cards))
    shape = gpt_shape(config.model)
    head = (
        f"{shape.parameters / 1e9:.2f} billion parameters, {cards} cards of {gigabytes} GB, precision={config.precision} "
        f"micro_batch={config.micro_batch} model.context={config.model.context}; GB on one card at the moment that needs the most"
    )
    table: List[Tuple[str, ...]] = [("strategy", "recompute", *PARTS, "total", "fits")]
    for setting, moment in rows:
        numbers = [f"{moment.parts[part] / 1e9:.1f}" for part in PARTS]
        verdict = "yes" if moment.total <= RESERVE * gigabytes * 1e9 else "no"
        recompute = str(setting.activation_checkpointing).lower()
        table.append((setting.strategy, recompute, *numbers, f"{moment.total / 1e9:.1f}", verdict))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in table]
    found = [setting for setting, moment in rows if moment.total <= RESERVE * gigabytes * 1e9]
    return "\n".join([head, *lines, _advice(found, rows)]) + "\n"


def _rows(config: TrainConfig, cards: int) -> Iterator[Tuple[TrainConfig, Moment]]:
    """In the order of speed: what is gathered or computed twice comes last."""
    for strategy in STRATEGIES:
        for recompute in RECOMPUTE:
            fsdp = config.fsdp if strategy == "fsdp2" else type(config.fsdp)()
            setting = replace(config, strategy=strategy, activation_checkpointing=recompute, fsdp=fsdp)
            setting = with_ranks(setting, cards)
            yield setting, peak(gpt_shape(config.model), setup_of(setting, cards, config.model.context))


def _advice(found: List[TrainConfig], rows: List[Tuple[TrainConfig, Moment]]) -> str:
    if found:
        first = found[0]
        recompute = str(first.activation_checkpointing).lower()
        return f"fits first: strategy={first.strategy} activation_checkpointing={recompute}"
    least = min(moment.total for _, moment in rows)
    return f"none fits; the least is {least / 1e9:.1f} GB: take a smaller micro_batch, precision=bf16, or more cards"


def _number(words: Sequence[str], key: str, default: int) -> Tuple[int, List[str]]:
    """The value of `key=N` and the rest of the words. Raises UserError: it is no whole number above 0."""
    value, rest = default, []
    for word in words:
        name, _, text = word.partition("=")
        if name != key:
            rest.append(word)
        elif text.isdecimal() and int(text) > 0:
            value = int(text)
        else:
            raise UserError(f"{word}: allowed: a whole number above 0, such as {key}=8")
    return value, rest
