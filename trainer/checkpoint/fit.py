"""In what the settings of a checkpoint differ from those of the run that is to go on from it. No torch here."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

BINDING = ("model.", "strategy", "task", "options.")  # what makes another model of it
# What may change between two parts of one training without changing its numbers.
FREE_KEYS = frozenset(
    [
        *("out", "resume", "save_steps", "save_total_limit", "device", "ddp_timeout", "hang_timeout", "log_steps"),
        *("data.workers", "data.prefetch", "data.pin_memory", "data.validation", "eval_steps", "eval_batches"),
        *("save_minutes", "keep_best", "keep_every", "roll_back", "async_save", "report", "peak_tflops"),
        *("activation_checkpointing", "find_unused_parameters", "gradient_as_bucket_view"),
    ]
)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> "key: saved -> now", for keys that bear on the numbers."""
    before, after = _flat(saved), _flat(now)
    keys = sorted((set(before) | set(after)) - FREE_KEYS)
    return {
        key: f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after.get(key))}"
        for key in keys
        if before.get(key) != after.get(key)
    }


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        inside = {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
        flat.update(inside)
    return flat
