"""Llama, Mistral, Qwen 2 and Qwen 3 on text, tokens or chats."""

from __future__ import annotations

from typing import Dict, Mapping, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.config.llama_shape import named_shape
from trainer.data.language import LanguageSamples, count_targets, inputs_of, open_language
from trainer.runtime.seeds import derive_seed
from trainer.tasks.attention import AttentionShape
from trainer.tasks.base import Task
from trainer.tasks.codecs import tokenizer_codec
from trainer.tasks.continuation import Codec
from trainer.tasks.llama_model import LlamaModel
from trainer.tasks.lora import ADAPTER, add_adapters, frozen_weights, initialise_adapter
from trainer.values import Model


class Llama(Task):
    """Shaped by a config.json, reads data.*; batches as open_language() gives them."""

    def __init__(self, config: TrainConfig, shape: str = "", context: int = 0) -> None:
        """
        Args:
            config: all settings.
            shape, context: as for named_shape().
        """
        super().__init__(config)
        self.shape_path, self.shape, self.context = named_shape(config, shape, context)
        self.tokens_per_sample = self.context
        self._frozen: Dict[str, int] = {}
        # Some files have a tied head, too, and those of 2023 the frequencies of the positions.
        self.unused_weights = ("*.rotary_emb.inv_freq", *(("lm_head.weight",) if self.shape.tied else ()))

    def build_model(self) -> LlamaModel:
        """Raises UserError: it has no layers for the adapters, or peft is missing."""
        model = LlamaModel(self.shape)
        if self.config.lora.rank:
            add_adapters(model, self.blocks(model), self.config.lora)
            self._frozen = {name: weight.numel() for name, weight in frozen_weights(model).items()}
        return model

    def build_data(self, split: str) -> LanguageSamples | None:
        return open_language(
            self.config,
            split,
            context=self.context,
            vocabulary=self.shape.vocabulary,
            folder=self.shape_path if self.shape_path.is_dir() else self.shape_path.parent,
            model=self.shape.raw,
        )

    def loss(self, model: Model, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(*inputs_of(batch))
        return loss

    def codec(self) -> Codec:
        return tokenizer_codec(self.config, self.shape_path, self.shape.vocabulary)

    def next_logits(self, model: Model, tokens: torch.Tensor, at: int) -> torch.Tensor:
        logits: torch.Tensor = model(tokens, None, None, at)[0]
        return logits

    def count_terms(self, batch: torch.Tensor) -> torch.Tensor:
        return count_targets(batch)

    def attention(self, batch: torch.Tensor) -> AttentionShape:
        tokens, _, positions = inputs_of(batch)
        masked = positions is not None
        return AttentionShape(self.shape.heads, self.shape.head_width, tokens.shape[1], is_masked=masked)

    def blocks(self, model: torch.nn.Module) -> Sequence[torch.nn.Module]:
        assert isinstance(model, LlamaModel)
        return list(model.model.layers)

    def ends(self, model: torch.nn.Module) -> Sequence[Sequence[torch.nn.Module]]:
        assert isinstance(model, LlamaModel)
        # A tied head takes the weight of the embedding without calling it.
        return [] if model.lm_head is None else [[model.model.embed_tokens], [model.model.norm, model.lm_head]]

    def initialise(self, name: str, weight: torch.Tensor) -> None:
        """transformers': normal with initializer_range, zero biases, norms at one; adapters as peft's."""
        if ADAPTER in name:
            initialise_adapter(name, weight, derive_seed(self.config.seed, name))
            return
        if weight.dim() == 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            return
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, name))
        weight.normal_(0.0, self.shape.std, generator=generator)

    def flops_per_sample(self, sizes: Mapping[str, int]) -> int:
        """As for the GPT (trainer/metrics/mfu.py); a tied embedding is multiplied once, as the head. Frozen weights have no gradient."""
        trained, frozen = (
            sum(size for name, size in some.items() if self.shape.tied or "embed" not in name)
            for some in (sizes, self._frozen)
        )
        attention = self.shape.layers * self.shape.heads * self.shape.head_width * self.context
        return (6 * trained + 4 * frozen + 12 * attention) * self.context
