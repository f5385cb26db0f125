"""`python -m trainer plan`: a table of the memory on one card, by strategy and recomputation. No torch here."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from trainer.config.config import LLAMA_TASK, TrainConfig
from trainer.config.defaults import with_device
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.memory.estimate import PARTS
from trainer.memory.fitting import RESERVE, Model, advice, rows
from trainer.memory.shapes import known_shape

CARD_MEMORY = {"gcu": 32}
"""GB of a card by device, as a T20 has; 80 for others."""


def plan(words: Sequence[str]) -> str:
    """
    The table for `cards=N card_memory=GB` and settings of a training.
    Raises UserError: a wrong setting, or a task whose activations are unknown.
    """
    cards, words = _number(words, "cards", 1)
    given_gigabytes, words = _number(words, "card_memory", 0)
    config = load_config(None, words)
    gigabytes = given_gigabytes or CARD_MEMORY.get(config.device, 80)
    model = known_shape(config)
    if model is None:
        raise UserError(
            f"plan: knows the activations of the GPT and of task={LLAMA_TASK} only, not those of task={config.task}; name model.size=7b, "
            "or that task with options.shape=config.json"
        )
    config, _ = with_device(config, "cuda" if config.device in ("auto", "cuda") else config.device, ["bf16"])
    card_bytes = gigabytes * 1e9
    table: List[Tuple[str, ...]] = [("strategy", "recompute", *PARTS, "total", "fits")]
    for setting, moment in rows(config, model, cards):
        numbers = [f"{moment.parts[part] / 1e9:.1f}" for part in PARTS]
        verdict = "yes" if moment.total <= RESERVE * card_bytes else "no"
        recompute = str(setting.activation_checkpointing).lower()
        table.append((setting.strategy, recompute, *numbers, f"{moment.total / 1e9:.1f}", verdict))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in table]
    return "\n".join([_head(config, model, cards, gigabytes), *lines, advice(config, model, cards, card_bytes)]) + "\n"


def _head(config: TrainConfig, model: Model, cards: int, gigabytes: int) -> str:
    shape, context = model
    return (
        f"{shape.parameters / 1e9:.2f} billion parameters, {cards} {'card' if cards == 1 else 'cards'} of {gigabytes} GB, precision={config.precision} "
        f"micro_batch={config.micro_batch}, {context} tokens a sample; GB on one card at the moment that needs the most"
    )


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
