"""Samples of a language model: a sequence of tokens cut into windows."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch

from trainer.data.files import find_tokens
from trainer.errors import UserError


class Windows:
    """Sample i: int64 [context + 1] from token i * context on; every token is predicted once, except in an incomplete last window."""

    is_random = False

    def __init__(
        self,
        paths: Sequence[str],
        form: str,
        *,
        key: str,
        context: int,
        vocabulary: int,
        size_keys: Tuple[str, str] = ("model.context", "model.vocabulary"),
    ) -> None:
        """
        Args: the arguments of find_tokens, the sizes of the model, and the keys of both sizes, for messages.

        Raises:
            UserError: also if there are fewer tokens than one sample needs.
        """
        self.tokens, self.context, self.vocabulary = find_tokens(paths, form, key), context, vocabulary
        names = ", ".join(paths) or "the standard library"
        unit = "bytes of text" if self.tokens.has_text else "tokens"
        if len(self.tokens) < context + 1:
            raise UserError(
                f"{key}: {names}: {len(self.tokens)} {unit}, {size_keys[0]}={context} needs at least {context + 1}"
            )
        self.is_safe = self.tokens.has_text and vocabulary >= 256  # noqa: PLR2004 -- bytes
        self.description = f"{len(self.tokens)} {unit}"
        self.key, self.vocabulary_key = key, size_keys[1]

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.tokens.read(index * self.context, self.context + 1)
        if not self.is_safe:
            # an index beyond the embedding would end a GPU process without naming the cause
            wrong = ((row < 0) | (row >= self.vocabulary)).nonzero()
            if len(wrong):
                offset = int(wrong[0])
                raise UserError(
                    f"{self.key}: {self.tokens.position_of(index * self.context + offset)}: {int(row[offset])} is no token of "
                    f"{self.vocabulary_key}={self.vocabulary}: it has to be the size of the tokenizer that wrote the data; or correct data.format"
                )
        return row

    def digest(self) -> str:
        return self.tokens.digest()
