"""Attention in which a token sees itself and earlier tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

FUSED_ATTENTION = getattr(functional, "scaled_dot_product_attention", None)  # torch >= 2.0


@dataclass(frozen=True)
class AttentionShape:
    """
    The attention of one sample in each block.

    is_masked: a mask separates documents; otherwise all earlier tokens are seen.
    """

    heads: int
    head_width: int
    length: int
    is_masked: bool = False


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Attention over the same and earlier positions.

    Args:
        query, key, value: all [batch, heads, length, head width].
        allowed: instead of all of them, those of document_mask().
    """
    if FUSED_ATTENTION is not None:
        fused: torch.Tensor = FUSED_ATTENTION(query, key, value, attn_mask=allowed, is_causal=allowed is None)
        return fused
    return manual_causal_attention(query, key, value, allowed)


def manual_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention in basic operations, for torch before 2.0."""
    length = query.shape[-2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if allowed is None:
        allowed = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1) @ value


def document_mask(positions: torch.Tensor) -> torch.Tensor:
    """
    Allow attention to the same and earlier positions of the same document.

    Args:
        positions: [batch, length], from 0 on in each document.

    Returns:
        [batch, 1, length, length], bool.
    """
    documents = (positions == 0).cumsum(1)
    same: torch.Tensor = documents[:, :, None] == documents[:, None, :]
    return same.tril().unsqueeze(1)
