"""The samples of a language model with a tokenizer: windows of tokens, or packed conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple, Union

import torch

from trainer.config.config import TrainConfig
from trainer.data.conversations import load_conversations
from trainer.data.formats import RECORD_LISTS, RECORDS
from trainer.data.mixture import Mixture, open_paths
from trainer.data.packing import IGNORED, PackedConversations
from trainer.data.paths import matching_files
from trainer.data.tokenizer import Tokenizer
from trainer.data.windows import Windows
from trainer.errors import UserError

BYTES = 256
LanguageSamples = Union[Windows, PackedConversations, Mixture]


def open_language(
    config: TrainConfig, split: str, *, context: int, vocabulary: int, folder: Path, model: Mapping[str, Any]
) -> LanguageSamples | None:
    """
    The samples of a split; None without validation data.

    Args:
        config: data.* and init.
        split: "train" or "validation".
        context: tokens of a sample.
        vocabulary: tokens of the model.
        folder: has the model's tokenizer, unless data.tokenizer names another.
        model: its config.json.

    Raises:
        UserError: the data are missing or invalid, or not made of the model's tokens.
    """
    data = config.data
    if split == "validation" and not data.validation:
        return None
    key = "data.paths" if split == "train" else "data.validation"

    def open_source(paths: Sequence[str]) -> Windows | PackedConversations:
        records = chat_files(paths, data.format, key)
        if not records:
            return _windows(config, paths, key, context=context, vocabulary=vocabulary)
        tokenizer = Tokenizer(Path(data.tokenizer).expanduser() if data.tokenizer else folder)
        misfit = tokenizer.misfit(model, vocabulary)
        if misfit:
            raise UserError(f"data.tokenizer: {tokenizer.path} does not fit the model: {misfit}")
        return PackedConversations(load_conversations(records, tokenizer, key), context, key)

    return open_paths(data, split, open_source)


def chat_files(paths: Sequence[str], form: str, key: str) -> List[Path]:
    """The files of chat records, or none. Raises UserError: only some of them have chats."""
    found = [path for name in paths for path in matching_files(name, key)] if form == "auto" else []
    records = [path for path in found if path.suffix in (*RECORDS, *RECORD_LISTS)]
    if records and len(records) < len(found):
        foreign = next(path for path in found if path not in records)
        raise UserError(f"{key}: {records[0]} has chat records and {foreign} has none: name files of one kind")
    return records


def _windows(config: TrainConfig, paths: Sequence[str], key: str, *, context: int, vocabulary: int) -> Windows:
    form = config.data.format
    samples = Windows(
        paths, form, key=key, context=context, vocabulary=vocabulary, size_keys=("options.context", "vocab_size")
    )
    if config.init and samples.tokens.has_text and form == "auto" and vocabulary > BYTES:
        raise UserError(
            f"{key}: {', '.join(paths) or 'the standard library'}: text is read as bytes, which are not tokens of "
            f"init={config.init}: make tokens of it by python -m trainer.data tokenize, or write chat records to a .jsonl file; "
            "data.format=bytes trains on bytes"
        )
    return samples


def inputs_of(batch: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens, targets and positions [batch, context], of a batch of windows, which have no positions, or of packed conversations."""
    if batch.dim() == 2:  # noqa: PLR2004 -- windows
        return batch[:, :-1], batch[:, 1:], None
    return batch[:, 0], batch[:, 1], batch[:, 2]


def count_targets(batch: torch.Tensor) -> torch.Tensor:
    """The number of targets that the loss of such a batch adds."""
    return (inputs_of(batch)[1] != IGNORED).sum()
