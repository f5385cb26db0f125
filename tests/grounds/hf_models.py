"""Small models of transformers with random weights and a tokenizer, in folders as from_pretrained() reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.grounds.chats import TOKENS, write_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": TOKENS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 128, "initializer_range": 0.2,
    "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def _config(kind: str, changes: dict[str, Any]) -> Any:  # of transformers
    return CONFIG_MAPPING[kind](**{**SIZES, **changes})


def build(kind: str = "llama", **changes: object) -> Any:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    return auto.from_config(_config(kind, changes), attn_implementation="sdpa").eval()


def write_config(folder: Path, kind: str = "llama", **changes: object) -> None:
    """Write the folder without weights and tokenizer."""
    _config(kind, changes).save_pretrained(folder)


def write_model(folder: Path, kind: str = "llama", **changes: object) -> Any:
    """Write the folder, and return the model."""
    model = build(kind, **changes)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """In fp32, of the model that transformers loads."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model.eval()(tokens).logits
    return found
