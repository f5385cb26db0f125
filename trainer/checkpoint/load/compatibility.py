"""Check that a checkpoint has the model, data and settings of the run that resumes from it."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.errors import UserError
from trainer.parallel.base import Strategy

BINDING = ("model.", "task", "options.", "lora.")  # a change of these makes it another model
# Settings that may change between two attempts without changing the losses.
FREE_KEYS = frozenset(
    "out resume init save_steps save_total_limit device ddp_timeout hang_timeout log_steps fingerprint_steps start_timeout "
    "data.workers data.prefetch data.pin_memory data.validation data.tokenizer eval_steps eval_batches patience sample_prompts evaluate_only "
    "save_minutes save_share memory_steps keep_best keep_every roll_back batch async_save checkpoint report peak_tflops "
    "activation_checkpointing find_unused_parameters gradient_as_bucket_view fsdp.reshard fsdp.accumulate".split()
)
NAMED_AT_MOST = 3


def check_compatible(
    manifest: Mapping[str, Any],
    config: TrainConfig,
    strategy: Strategy,
    *,
    world_size: int,
    data_digest: str | None,
    base_digest: str,
) -> None:
    """
    Check that training can resume from the checkpoint with this manifest; warn about what will differ.

    `data_digest` is that of the training data, None without any.

    Raises:
        UserError: it has another model or data.
    """
    if manifest["world_size"] != world_size:
        log_line(
            f"WARNING: the checkpoint was written by {manifest['world_size']} ranks and is split over {world_size} now: "
            "other batches, so other losses than without the change"
        )
    step, changed = manifest["step"], differences(manifest["config"], config.as_dict())
    if "optim.name" in changed:
        raise UserError(
            f"the checkpoint at step {step} has the moments of another optimizer: {changed['optim.name']} (saved -> now): "
            "use the earlier one, or start from its weights: python -m trainer.checkpoint export, then init= and another out="
        )
    binding = [text for key, text in changed.items() if key.startswith(BINDING)]
    # With equal settings, the model's code may have changed; older manifests do not list the sizes.
    binding = binding or _changed_sizes(manifest.get("sizes", strategy.sizes), strategy.sizes)
    if binding:
        raise UserError(f"the checkpoint at step {step} does not fit: {', '.join(binding)} (saved -> now)")
    if changed:
        log_line(f"WARNING: resuming with other settings (saved -> now): {', '.join(changed.values())}")
    if manifest.get("base_sha256", "") != base_digest:
        raise UserError(
            f"the checkpoint at step {step} has adapters of other frozen weights than init={config.init}: sha256 "
            f"{manifest.get('base_sha256', '')[:12]} -> {base_digest[:12]} (saved -> now)"
        )
    if data_digest is not None and manifest["data_sha256"] != data_digest:
        raise UserError(
            f"the checkpoint at step {step} was trained on other data, so its position in them is meaningless: use the "
            "earlier data, or resume=none and another out= (python -m trainer.checkpoint export writes the weights for init=)"
        )


def check_parameters(model: Mapping[str, Any], sizes: Mapping[str, int], step: int) -> None:
    """
    Check that the saved model has the parameters of these sizes: an older manifest does not list its own.
    Raises UserError: it lacks one, or has one of another size.
    """
    changed = _changed_sizes({name: model[name].numel() for name in sizes if name in model}, sizes)
    if changed:
        raise UserError(f"the checkpoint at step {step} does not fit: {', '.join(changed)} (saved -> now)")


def _changed_sizes(saved: Mapping[str, int], now: Mapping[str, int]) -> List[str]:
    names = [name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name)]
    more = [f"and {len(names) - NAMED_AT_MOST} more parameters"] if len(names) > NAMED_AT_MOST else []
    named = [f"{name} of {saved.get(name, 'no')} -> {now.get(name, 'no')} numbers" for name in names[:NAMED_AT_MOST]]
    return [*named, *more]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> "key: saved -> now", for keys that affect the losses."""
    # A setting that the older trainer did not have is saved with the default, by which it trained.
    before, after = {**_flat(TrainConfig().as_dict()), **_flat(saved)}, _flat(now)
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
