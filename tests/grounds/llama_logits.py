"""
Logits of small models of transformers, to which the trainer's Llama is compared without importing transformers.

    python -m tests.grounds.llama_logits     writes tests/cases/llama_logits.json
"""

from __future__ import annotations

import importlib
import json
import zlib
from typing import Any

import torch

from tests.paths import CASES

RECORDED = CASES / "llama_logits.json"
TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]]
_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 64,
}
# The four numbers of Llama 3.1, for so small a context that there are frequencies in all three ranges.
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "llama-3": {"model_type": "llama", **_SIZES, "head_dim": 8, "rope_parameters": _LLAMA3, "rms_norm_eps": 1e-5},
    "llama-bias-tied": {"model_type": "llama", **_SIZES, "attention_bias": True, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": 64},
    "qwen2-tied": {
        "model_type": "qwen2",
        **_SIZES,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 6},
}


def fill(model: torch.nn.Module) -> None:
    """Give each parameter values that follow from its name and shape, the same in any version of torch."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float64)
            values = (numbers * 12.9898 + zlib.crc32(name.encode()) % 1000).sin() * 0.5
            values = values + 1.0 if name.endswith("norm.weight") else values
            parameter.copy_(values.view(parameter.shape))


def main() -> None:
    transformers: Any = importlib.import_module("transformers")
    logits: dict[str, Any] = {}
    for variant, values in VARIANTS.items():
        config = transformers.AutoConfig.for_model(**values)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        fill(model)
        with torch.no_grad():
            logits[variant] = [
                [[float(f"{value:.9g}") for value in position] for position in row]
                for row in model(torch.tensor(TOKENS)).logits.tolist()
            ]
    recorded = {"transformers": transformers.__version__, "torch": torch.__version__, "logits": logits}
    RECORDED.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
