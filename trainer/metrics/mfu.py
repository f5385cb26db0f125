"""
MFU, model FLOPs utilisation: the share of the devices' peak that the model's own arithmetic takes.

MFU = tokens/s * FLOPs per token / (devices * peak FLOP/s of one), FLOPs per token = 6 N + 12 L W T, where N counts the
parameters without the embeddings (a look-up multiplies nothing), L layers, W width and T context. The formula of PaLM
(arXiv:2204.02311, appendix B): a forward and a backward pass, attention in full although it is causal, and
without the recomputation of activation checkpointing.
"""

from __future__ import annotations

from typing import Iterable, Tuple

from trainer.config.config import ModelConfig, TrainConfig

# Peak of one device in TFLOP/s: dense, bf16 or fp16 with fp32 accumulation, from NVIDIA's data sheets, which often print
# twice as much, for sparse matrices. Matched by words in the driver's name of the device; the first match counts.
PEAK_TFLOPS = (
    ("H200 NVL", 835.0),
    ("H200", 989.0),
    ("GH200", 989.0),
    ("H100 NVL", 835.0),
    ("H100 PCIe", 756.0),
    ("H100", 989.0),
    ("H800 PCIe", 756.0),
    ("H800", 989.0),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("A10", 125.0),
    ("V100 PCIE", 112.0),
    ("V100", 125.0),
)


def flops_per_token(parameters: Iterable[Tuple[str, int]], config: ModelConfig) -> int:
    """FLOP of a training step per token, from names and sizes of all parameters."""
    embeddings = ("token.weight", "position.weight")
    matrices = sum(size for name, size in parameters if name not in embeddings)
    return 6 * matrices + 12 * config.layers * config.width * config.context


def peak_flops(config: TrainConfig, device_name: str) -> float | None:
    """FLOP/s of one device; None if unknown: another device, a MIG slice, or fp32, which may be TF32."""
    if config.peak_tflops is not None:
        return config.peak_tflops * 1e12
    words = set(device_name.replace("-", " ").split())
    known = [tflops for name, tflops in PEAK_TFLOPS if words.issuperset(name.split())]
    return known[0] * 1e12 if known and config.precision != "fp32" and "MIG" not in words else None
