"""Shapes of the GPT, named by their approximate number of parameters with a vocabulary of 256 bytes. No torch here."""

from __future__ import annotations

from typing import Dict

SIZES: Dict[str, Dict[str, int]] = {
    "1m": {"layers": 4, "width": 128, "heads": 4, "context": 128},
    "10m": {"layers": 6, "width": 384, "heads": 6, "context": 256},
    "30m": {"layers": 10, "width": 512, "heads": 8, "context": 512},
    "100m": {"layers": 14, "width": 768, "heads": 12, "context": 1024},
    "350m": {"layers": 28, "width": 1024, "heads": 16, "context": 1024},
    "1b": {"layers": 20, "width": 2048, "heads": 16, "context": 2048},
    "3b": {"layers": 32, "width": 2816, "heads": 22, "context": 2048},
    "7b": {"layers": 34, "width": 4096, "heads": 32, "context": 2048},
    "13b": {"layers": 40, "width": 5120, "heads": 40, "context": 2048},
    "30b": {"layers": 48, "width": 7168, "heads": 56, "context": 2048},
    "70b": {"layers": 86, "width": 8192, "heads": 64, "context": 2048},
}
