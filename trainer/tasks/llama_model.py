"""
A Llama: pre-norm blocks, rotary positions, grouped-query attention, SwiGLU. No dropout, no buffers.

Its parameters have the names and shapes of transformers' LlamaForCausalLM, so files of weights need no conversion. Mistral and
Qwen 2 and 3 differ by biases and norms only.
"""

from __future__ import annotations

import math
from typing import Tuple

import torch
from torch import nn
from torch.nn import functional

from trainer.config.llama_shape import LlamaShape
from trainer.tasks.attention import causal_attention, document_mask
from trainer.tasks.cross_entropy import Head, head_loss


class RMSNorm(nn.Module):
    """Divides by the root mean square, computed in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class Attention(nn.Module):
    """Grouped queries: each key and value serves heads / kv_heads queries."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_width, self.group = shape.head_width, shape.heads // shape.kv_heads
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, queries, bias=shape.query_bias)
        self.k_proj = nn.Linear(shape.width, keys, bias=shape.query_bias)
        self.v_proj = nn.Linear(shape.width, keys, bias=shape.query_bias)
        self.o_proj = nn.Linear(queries, shape.width, bias=shape.output_bias)
        self.q_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.head_norms else nn.Identity()
        self.k_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.head_norms else nn.Identity()

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, allowed: torch.Tensor | None
    ) -> torch.Tensor:
        heads = (*x.shape[:2], -1, self.head_width)
        value = self.v_proj(x).view(heads).transpose(1, 2)
        query = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin).to(value.dtype)
        key = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin).to(value.dtype)
        if self.group > 1:
            key, value = key.repeat_interleave(self.group, dim=1), value.repeat_interleave(self.group, dim=1)
        attended = causal_attention(query, key, value, allowed).transpose(1, 2).reshape(*x.shape[:2], -1)
        projected: torch.Tensor = self.o_proj(attended)
        return projected


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed, bias=False)
        self.down_proj = nn.Linear(shape.feed, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    """Attention, then feed-forward, each normalised before and added after."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, allowed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        [batch, length, width] -> the same shape.

        Args:
            x: activations.
            cos, sin: of the positions, [length, head width] or [batch, 1, length, head width].
            allowed: see causal_attention().
        """
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, allowed)
        fed: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return fed


class Decoder(nn.Module):
    """Tokens in, normalised activations of the last block out."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = RMSNorm(shape.width, shape.norm_eps)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Int64 [batch, length]; positions begin at 0 in each document, by default all tokens are one."""
        allowed = None if positions is None else document_mask(positions)
        rotated = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions.unsqueeze(1)
        cos, sin = rotations(rotated, self.shape)
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x, cos, sin, allowed)
        normed: torch.Tensor = self.norm(x)
        return normed


class LlamaModel(nn.Module):
    """Tokens in, loss out. A tied head has no parameter."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = None if shape.tied else Head(shape.width, shape.vocabulary)

    def forward(
        self, tokens: torch.Tensor, target: torch.Tensor | None, positions: torch.Tensor | None = None, at: int = 0
    ) -> torch.Tensor:
        """
        Sum of the cross entropies in nats over all targets but -100; scalar, fp32. All int64 [batch, length].

        Without targets, the logits of token `at`.
        """
        x = self.model(tokens, positions)
        if target is None:
            last = x[:, at]
            return functional.linear(last, self.model.embed_tokens.weight) if self.lm_head is None else self._head(last)
        if self.lm_head is None:
            return head_loss(x, self.model.embed_tokens.weight, target)
        loss: torch.Tensor = self.lm_head(x, target)
        return loss

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        assert self.lm_head is not None
        logits: torch.Tensor = self.lm_head(x)
        return logits

    def logits(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """[batch, length, vocabulary]."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(self.model(tokens, positions), head.weight)


def rotations(positions: torch.Tensor, shape: LlamaShape) -> Tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine by which queries and keys at these positions are rotated, [..., head width], fp32."""
    halves = torch.arange(0, shape.head_width, 2, device=positions.device).float() / shape.head_width
    frequencies = _scaled(1.0 / shape.rope_theta**halves, shape)
    angles = positions[..., None].float() * torch.cat((frequencies, frequencies))
    return angles.cos(), angles.sin()


def _scaled(frequencies: torch.Tensor, shape: LlamaShape) -> torch.Tensor:
    """Llama 3.1: waves longer than a share of the first context are stretched by `factor`, with a smooth transition."""
    if not shape.rope_scaling:
        return frequencies
    factor, low, high, context = shape.rope_scaling
    turns = context * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (share + (1 - share) / factor)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of numbers, one from each half of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
