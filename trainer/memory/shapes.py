"""Shapes of models for estimate.py, and its settings, from those of a training. No torch here."""

from __future__ import annotations

from typing import Optional, Tuple

from trainer.config.config import GPT_TASK, LLAMA_TASK, ModelConfig, TrainConfig
from trainer.config.llama_shape import LlamaShape, named_shape
from trainer.memory.estimate import FULL, SELECTIVE, Setup, Shape


def known_shape(config: TrainConfig) -> Optional[Tuple[Shape, int]]:
    """
    The shape of a training's model, and the tokens of a sample; None for a task whose activations are unknown.
    Raises UserError: the shape of a Llama cannot be read.
    """
    if config.task == GPT_TASK:
        return gpt_shape(config.model), config.model.context
    if config.task == LLAMA_TASK:
        _, shape, context = named_shape(config, config.options.get("shape", ""), config.options.get("context", 0))
        return llama_shape(shape), context
    return None


def gpt_shape(model: ModelConfig) -> Shape:
    """The shape of the model in tasks/gpt.py."""
    width, embedded = model.width, model.vocabulary * model.width
    return Shape(
        layers=model.layers,
        width=width,
        feed=4 * width,
        heads=model.heads,
        kv_heads=model.heads,
        head_width=width // model.heads,
        vocabulary=model.vocabulary,
        gated=False,
        block=12 * width * width + 13 * width,
        first=embedded + model.context * width,
        last=embedded + 2 * width,
    )


def llama_shape(model: LlamaShape) -> Shape:
    """The shape of the model in tasks/llama_model.py."""
    width, queries, keys = model.width, model.heads * model.head_width, model.kv_heads * model.head_width
    biases = (queries + 2 * keys if model.query_bias else 0) + (width if model.output_bias else 0)
    norms = 2 * width + (2 * model.head_width if model.head_norms else 0)
    return Shape(
        layers=model.layers,
        width=width,
        feed=model.feed,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_width=model.head_width,
        vocabulary=model.vocabulary,
        gated=True,
        block=2 * width * (queries + keys) + 3 * width * model.feed + biases + norms,
        first=model.vocabulary * width,
        last=width + (0 if model.tied else model.vocabulary * width),
    )


def setup_of(config: TrainConfig, ranks: int, context: int) -> Setup:
    """The settings of a training of samples of `context` tokens on this number of ranks."""
    numbers = {"adamw": 2, "muon": 2, "sgd": 0 if config.optim.momentum == 0 else 1}[config.optim.name]
    recompute = config.activation_checkpointing
    return Setup(
        strategy=config.strategy,
        ranks=ranks,
        replicas=config.fsdp.replicas,
        bits16=config.precision != "fp32",
        recompute=SELECTIVE if recompute == SELECTIVE else FULL if recompute else "",
        recomputed_every=recompute if type(recompute) is int else 1,
        tokens=config.micro_batch * context,
        accumulation=max(1, config.accumulation),
        accumulate=config.fsdp.accumulate,
        reshard=config.fsdp.reshard,
        moments=numbers + (1 if config.optim.ema else 0),
        fused=config.optim.fused,
        offload_optimizer=config.offload_optimizer,
        offload_param=config.offload_param,
    )
