"""Texts as the model continues them, for the eye: the most probable token after each other, on all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, FrozenSet, List, Protocol, Sequence

import torch

from trainer.errors import UserError
from trainer.values import Model

NEW_TOKENS = 64


@dataclass(frozen=True)
class Codec:
    """Texts as tokens and back; a continuation ends before one of `ends`."""

    encode: Callable[[str], List[int]]
    decode: Callable[[List[int]], str]
    ends: FrozenSet[int] = frozenset()


class TextTask(Protocol):
    """The members of a task that continues texts."""

    tokens_per_sample: int | None

    def codec(self) -> Codec | None:
        """Return the codec of the model's tokens; None: the task does not continue texts."""

    def next_logits(self, model: Model, tokens: torch.Tensor, at: int) -> torch.Tensor:
        """Return the logits [vocabulary] of the token that follows token `at` of int64 [1, length]."""


def byte_codec() -> Codec:
    """The bytes of UTF-8 as tokens."""
    return Codec(lambda text: list(text.encode()), lambda tokens: bytes(tokens).decode(errors="replace"))


def encoded(prompts: Sequence[str], codec: Codec, context: int) -> List[List[int]]:
    """The tokens of the prompts. Raises UserError: a prompt has none, or leaves no space for a continuation."""
    found = [codec.encode(prompt) for prompt in prompts]
    for prompt, tokens in zip(prompts, found):
        if not 0 < len(tokens) < context:
            raise UserError(
                f"sample_prompts: {prompt!r} has {len(tokens)} tokens: at least 1, and fewer than the context of {context}, are needed"
            )
    return found


def continuations(
    task: TextTask, model: Model, prompts: Sequence[Sequence[int]], codec: Codec, *, device: torch.device
) -> List[str]:
    """
    At most NEW_TOKENS more tokens of each prompt, as text.

    Every rank calls the model equally often, as it may be sharded, and with one shape, for which a compiled model has its graph.
    """
    context = task.tokens_per_sample or 0
    length = min(context, max(map(len, prompts)) + NEW_TOKENS)
    texts = []
    for prompt in prompts:
        row = torch.zeros(1, length, dtype=torch.int64)
        row[0, : len(prompt)] = torch.tensor(prompt)
        tokens = row.to(device)
        for at in range(len(prompt) - 1, min(length, len(prompt) + NEW_TOKENS) - 1):
            tokens[0, at + 1] = task.next_logits(model, tokens, at).argmax()  # what is behind `at` is not seen
        new: List[int] = tokens[0, len(prompt) : len(prompt) + NEW_TOKENS].tolist()
        end = next((number for number, token in enumerate(new) if token in codec.ends), len(new))
        texts.append(codec.decode(new[:end]))
    return texts
