"""Attention in which a token sees itself and earlier tokens."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

FUSED_ATTENTION = getattr(functional, "scaled_dot_product_attention", None)  # torch >= 2.0


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over the same and earlier positions; all [batch, heads, length, head width]."""
    if FUSED_ATTENTION is not None:
        fused: torch.Tensor = FUSED_ATTENTION(query, key, value, is_causal=True)
        return fused
    return manual_causal_attention(query, key, value)


def manual_causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention in basic operations, for torch before 2.0."""
    length = query.shape[-2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ value
