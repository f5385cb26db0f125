"""
The arithmetic of a training's memory on one device: parameters and settings in, bytes out. No torch here.

Sources of the formulas, by name in the comments:

    [ZeRO]     Rajbhandari et al. 2019, arXiv:1910.02054, section 3: bytes of weights, gradients and Adam's state per parameter.
    [Adam]     Kingma and Ba 2014, arXiv:1412.6980: two moments per parameter.
    [SP]       Korthikanti et al. 2022, arXiv:2205.05198, section 4: tensors that a block keeps for its backward pass. Theirs is a block
               with dropout in 16 bits; the tensors here are those of tasks/gpt.py and tasks/llama_model.py, counted in the same way.
    [flash]    Dao et al. 2022, arXiv:2205.14135: attention keeps queries, keys, values, its result, and one number per head and token.
    [FSDP2]    docs.pytorch.org, torch.distributed.fsdp.fully_shard: a unit is gathered while the one before it computes; gradients of
               a unit are copied into one fp32 buffer, of which a rank keeps its shard.
    [loss]     tasks/cross_entropy.py of this trainer.
    [counted]  measured as all live tensors of one rank; tests/trainer/memory/test_estimate.py holds the estimates to 10 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping

MOST_LOGITS = 1 << 25  # that of tasks/cross_entropy.py
FULL, SELECTIVE = "true", "selective"


@dataclass(frozen=True)
class Shape:
    """
    A decoder. feed: width inside the feed-forward; gated: it is SwiGLU, else GELU.

    block, first, last: parameters of one block, of the embeddings, and of the last norm with the head, 0 for a tied one.
    """

    layers: int
    width: int
    feed: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    gated: bool
    block: int
    first: int
    last: int

    @property
    def parameters(self) -> int:
        return self.layers * self.block + self.first + self.last


@dataclass(frozen=True)
class Setup:
    """
    The settings that memory depends on, by the names of the trainer's keys.

    tokens: of one micro batch on one rank. recompute: activation_checkpointing, "" for none, of every n-th block. moments: the optimizer's numbers per parameter, an
    average of the weights included.
    """

    strategy: str = "ddp"
    ranks: int = 1
    replicas: int = 1
    bits16: bool = False
    recompute: str = ""
    recomputed_every: int = 1
    tokens: int = 0
    accumulation: int = 1
    accumulate: str = "sharded"
    reshard: bool = True
    moments: int = 2
    fused: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False

    @property
    def shards(self) -> int:
        """The parts into which the weights are split."""
        return self.ranks // self.replicas if self.strategy in ("fsdp2", "zero3") else 1

    @property
    def is_autocast(self) -> bool:
        """16 bits in matrix products only; norms and the residual stream are fp32."""
        return self.bits16 and self.strategy in ("ddp", "zero0")


PARTS = ("weights", "gathered", "gradients", "optimizer", "activations", "logits")


@dataclass(frozen=True)
class Moment:
    """The bytes in memory at one moment of a step, by PARTS."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def peak(shape: Shape, setup: Setup) -> Moment:
    """The moment of a step that needs the most memory."""
    return max(moments(shape, setup), key=lambda moment: moment.total)


def state_bytes(parameters: int, setup: Setup) -> Dict[str, float]:
    """
    Weights, gradients and the optimizer's state, without anything of a model's shape: what no micro batch and no recomputation changes.

    [ZeRO], [Adam]: fp32 weights, gradients and moments; DeepSpeed in 16 bits has weights and gradients of 2 bytes and a fp32 copy.
    """
    shards, ranks, deepspeed = setup.shards, setup.ranks, setup.strategy.startswith("zero")
    numbers = 2 if deepspeed and setup.bits16 else 4
    state = 4 * setup.moments + (4 if deepspeed and setup.bits16 else 0)
    split = {"zero1": (1, 1, ranks), "zero2": (1, ranks, ranks)}.get(setup.strategy, (shards, shards, shards))
    return {
        "weights": 0.0 if setup.offload_param else numbers * parameters / split[0],
        "gradients": numbers * parameters / split[1],
        "optimizer": 0.0 if setup.offload_optimizer else state * parameters / split[2],
    }


def moments(shape: Shape, setup: Setup) -> List[Moment]:
    """The moments of a step that can need the most."""
    number, tokens = 2 if setup.bits16 else 4, setup.tokens
    state = state_bytes(shape.parameters, setup)
    final = state["gradients"]
    kept = _gradients_between(shape, setup, final)
    whole_block = tokens * _saved(shape, setup)
    first_saved = tokens * _inputs(shape, setup) if setup.recompute else whole_block
    by_block = [whole_block if number % setup.recomputed_every else first_saved for number in range(shape.layers)]
    all_saved, last_saved = sum(by_block), by_block[-1]
    flight = tokens * _in_flight(shape, setup)
    residual = tokens * shape.width * (4 if setup.is_autocast else number)
    everything = all_saved + 3 * residual  # and the input, the last norm's input and result
    head = shape.width * shape.vocabulary
    cast = 2 * (shape.layers * shape.block + head) if setup.is_autocast else 0.0
    copies = setup.strategy in ("fsdp2", "zero3")  # blocks are gathered
    gathered_all = number * shape.layers * shape.block if copies and not setup.reshard else 0.0
    unit = number * shape.block if copies else 0.0

    def moment(name: str, gathered: float, gradients: float, activations: float, logits: float = 0.0) -> Moment:  # noqa: PLR0917
        changing = {"gathered": gathered + cast, "gradients": gradients, "activations": activations, "logits": logits}
        return Moment(name, {part: {**state, **changing}[part] for part in PARTS})

    last = number * shape.last if copies else 0.0
    head_gradient = number * head if copies else 4.0 * head
    unreduced, buffer = (number * shape.block, 4 * shape.block) if copies else (0.0, 0.0)
    block = max(gathered_all, unit)
    two_blocks = max(gathered_all, 2 * unit)
    recomputed = whole_block - last_saved  # nothing without recomputation
    in_blocks = all_saved + residual
    early, late = max(kept, head_gradient), max(kept, final)
    return [
        moment("loss", last + gathered_all, kept, everything, _logits(shape, setup)),
        moment("backward of the last block", two_blocks, early + unreduced, in_blocks + recomputed + flight),
        moment("gradients of the last block", two_blocks, early + unreduced + buffer, in_blocks - last_saved),
        moment("backward of the first block", block, late + unreduced, residual + whole_block + flight),
        moment("gradients of the first block", block, late + unreduced + buffer, residual),
        moment("update", 0.0, final + _temporaries(shape, setup), 0.0),
    ]


def _gradients_between(shape: Shape, setup: Setup, final: float) -> float:
    """Gradients in memory before the backward pass of a micro batch: those of the micro batches before, or DDP's buckets."""
    if setup.strategy == "ddp" and setup.ranks > 1:
        return (
            4.0 if setup.accumulation == 1 else 8.0
        ) * shape.parameters  # beside the buckets, until the last micro batch
    if setup.accumulation == 1:
        return 0.0
    return 4.0 * shape.parameters if setup.strategy == "fsdp2" and setup.accumulate == "whole" else final


def _saved(shape: Shape, setup: Setup) -> float:
    """
    Bytes per token that a block keeps for its backward pass [SP], [flash].

    GPT: inputs of two norms, inputs of mix, gather and feed, queries, keys and values, and both sides of GELU.
    Llama: each norm keeps its input in fp32, the normalised and the scaled values; SwiGLU keeps four tensors as wide as the feed-forward.
    """
    number = 2 if setup.bits16 else 4
    wide = 4 if setup.is_autocast else number  # of the residual stream
    attended = shape.heads * shape.head_width
    statistics = 4 * shape.heads + 16
    if shape.gated:
        normed = 4 if setup.is_autocast else number
        norms = 2 * shape.width * (4 + normed + number)
        return norms + number * (4 * attended + 4 * shape.feed) + statistics
    return 2 * shape.width * (wide + number) + number * (4 * attended + 2 * shape.feed) + statistics


def _inputs(shape: Shape, setup: Setup) -> float:
    """Bytes per token that a recomputed block keeps: its input; with `selective` also the results of products and attention."""
    number = 2 if setup.bits16 else 4
    given = shape.width * (4 if setup.is_autocast else number)
    if setup.recompute != SELECTIVE:
        return given
    attended, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    feed = (2 if shape.gated else 1) * shape.feed + shape.width
    return given + number * (2 * attended + 2 * keys + shape.width + feed) + 4 * shape.heads


def _in_flight(shape: Shape, setup: Setup) -> float:
    """Bytes per token of gradients that the backward pass of a block has at one time: those around its widest operation [counted]."""
    number = 2 if setup.bits16 else 4
    return number * ((2 if shape.gated else 1) * shape.feed + shape.width)


def _logits(shape: Shape, setup: Setup) -> float:
    """
    Bytes of the loss and its gradient [loss].

    Up to MOST_LOGITS: logarithms of probabilities, their gradient and that of the logits. Above, a part at a time: logits, their
    gradient, and gradients of the head in fp32 and of the activations.
    """
    number, logits = 2 if setup.bits16 else 4, setup.tokens * shape.vocabulary
    if logits <= MOST_LOGITS:
        return logits * (12.0 + (2 if setup.bits16 else 0))
    head = shape.vocabulary * shape.width
    part = MOST_LOGITS * (8.0 + (2 if setup.bits16 else 0))
    return part + head * (4.0 + number) + setup.tokens * shape.width * number


def _temporaries(shape: Shape, setup: Setup) -> float:
    """Bytes that an update needs beside the state: two tensors like the largest parameter if it is not fused [counted]."""
    largest = max(shape.width * shape.vocabulary, shape.width * shape.feed)
    return 0.0 if setup.fused or setup.strategy.startswith("zero") else 8.0 * largest / setup.shards
