"""Attention in which a token sees itself and earlier tokens, and, for the log, the kernel that torch takes for it."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, Iterator

import torch
from torch.nn import functional

FUSED_ATTENTION = getattr(functional, "scaled_dot_product_attention", None)  # torch >= 2.0
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""torch's numbers, of torch.nn.attention.SDPBackend; math: one after the other, with all scores in memory."""
CHECKS = ("flash", "efficient", "cudnn")


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


def attention_lines(shape: AttentionShape, precision: str, device: torch.device) -> Iterator[str]:
    """The kernel for this shape on this device, and a warning if it is a slow one on a card; nothing on devices that choose themselves."""
    choose: Any = getattr(torch, "_fused_sdp_choice", None)
    if device.type not in ("cpu", "cuda") or FUSED_ATTENTION is None or choose is None:
        return
    size = (1, shape.heads, shape.length)
    # For inputs of which a gradient is wanted there are fewer kernels.
    query = torch.empty(*size, shape.head_width, dtype=TYPES[precision], device=device, requires_grad=True)
    allowed = torch.ones(1, 1, *size[2:] * 2, dtype=torch.bool, device=device) if shape.is_masked else None
    kernel = KERNELS.get(int(choose(query, query, query, allowed, 0.0, allowed is None)), "a kernel unknown here")
    mask = "masked by documents" if shape.is_masked else "causal"
    heads = f"{shape.heads} heads of {shape.head_width}"
    yield f"attention by {kernel}: {device.type}, {precision}, {heads}, {shape.length} tokens, {mask}"
    if device.type == "cuda" and kernel == "math":
        yield slow_warning(query, allowed)


def slow_warning(query: torch.Tensor, allowed: torch.Tensor | None) -> str:
    """Why no other kernel can compute it, in torch's words."""
    module: Any = torch.backends.cuda
    parameters = module.SDPAParams(query, query, query, allowed, 0.0, allowed is None, False)  # noqa: FBT003 -- torch's
    reasons = []
    for kernel in CHECKS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            can = getattr(module, f"can_use_{kernel}_attention")(parameters, debug=True)
        reported = [re.sub(r"\s*\(Triggered internally.*", "", str(entry.message), flags=re.DOTALL) for entry in caught]
        reasons.append(f"{kernel}: {'turned off' if can else ' '.join(reported) or 'not in this build of torch'}")
    return f"WARNING: attention by math keeps the scores of all pairs of tokens in memory, and is slow; {'; '.join(reasons)}"
