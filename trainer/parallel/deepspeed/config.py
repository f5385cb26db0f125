"""DeepSpeed's configuration, from the trainer's settings and the user's file, if any. No torch here."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from trainer.config.config import ZERO_STAGES, TrainConfig
from trainer.errors import UserError
from trainer.parallel.deepspeed.package import bf16_optimizer_skips
from trainer.runtime.rank import Rank
from trainer.values import JsonValue

AUTO = "auto"
# DeepSpeed ignores unknown top-level keys, so a misspelt one would go unnoticed.
KNOWN = frozenset(
    "activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comms_logger compile "
    "communication_data_type "
    "compression_training csv_monitor curriculum_learning data_efficiency data_types dataloader_drop_last "
    "disable_allgather dump_state eigenvalue elasticity flops_profiler fp16 fp32_allreduce gradient_accumulation_steps "
    "gradient_clipping gradient_predivide_factor graph_harvesting hybrid_engine memory_breakdown monitor_config nebula "
    "optimizer pipeline pld prescale_gradients progressive_layer_drop quantize_training scheduler sparse_attention "
    "sparse_gradients steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size "
    "train_micro_batch_size_per_gpu use_data_before_expert_parallelism wall_clock_breakdown wandb weight_quantization "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization zenflow".split()
)
# Groups of keys that the trainer or DeepSpeed reads, by dotted name; a plain value there is an error.
GROUPS = frozenset(
    "aio autotuning bf16 bfloat16 checkpoint comms_logger compile csv_monitor data_efficiency data_types "
    "flops_profiler fp16 hybrid_engine optimizer optimizer.params pipeline tensor_parallel tensorboard torch_autocast "
    "wandb weight_quantization zero_optimization zero_optimization.offload_optimizer "
    "zero_optimization.offload_param".split()
)
NULLABLE = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")
REFUSED = {
    "scheduler": "the trainer sets the learning rate (lr, optim.warmup_steps, optim.schedule)",
    "elasticity": "the trainer's batch does not follow the number of ranks",
    "curriculum_learning": "the trainer draws its own batches",
    "amp": "use precision=fp16 or bf16",
    "activation_checkpointing": "use activation_checkpointing=true of the trainer",
}


def deepspeed_config(config: TrainConfig, rank: Rank, user_settings: Mapping[str, Any]) -> Dict[str, Any]:
    """
    Return DeepSpeed's configuration.

    Args:
        config: the trainer's settings; a setting in both must be equal.
        rank: for the world size.
        user_settings: from the user's file, or empty; "auto" takes the trainer's value, or DeepSpeed's default.

    Raises:
        UserError: names every contradiction, with both sides.
    """
    path = config.deepspeed or ""
    for key, value in user_settings.items():
        if key not in KNOWN:
            near = difflib.get_close_matches(key, KNOWN, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{path}: unknown key {key!r}, which DeepSpeed would pass over in silence{guess}")
        if key in REFUSED and not _all_auto(value):
            raise UserError(f"{path}: {key}: {REFUSED[key]}; leave it out of the file")
    flat = _flat({key: value for key, value in user_settings.items() if not (key in REFUSED and _all_auto(value))})
    flat = {key: value for key, value in flat.items() if value is not None or key not in NULLABLE}
    _check_groups(flat, _origins(config, rank), path)
    _check_agreement(flat, config, rank, path)
    kept = {key: value for key, value in flat.items() if value != AUTO and not key.startswith("optimizer.")}
    return _nested({**_defaults(config, flat), **kept, **_trainer_settings(config, rank)})


def strict_json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, allow_nan=False) + "\n"


def _trainer_settings(config: TrainConfig, rank: Rank) -> Dict[str, Any]:
    """Dotted key -> value, for keys that a setting of the trainer decides."""
    stage = ZERO_STAGES[config.strategy]
    ours: Dict[str, Any] = {
        "train_batch_size": config.micro_batch * config.accumulation * rank.world_size,
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.accumulation,
        "gradient_clipping": config.optim.grad_clip,
        "zero_optimization.stage": stage,
        "bf16.enabled": config.precision == "bf16" and stage > 0,
        "fp16.enabled": config.precision == "fp16",
    }
    for key, is_offloaded in (("offload_optimizer", config.offload_optimizer), ("offload_param", config.offload_param)):
        ours[f"zero_optimization.{key}.device"] = "cpu" if is_offloaded else "none"
    return ours


def _origins(config: TrainConfig, rank: Rank) -> Dict[str, str]:
    """Dotted key -> the trainer's setting as the user would write it, for messages."""
    settings = ("micro_batch", "accumulation", "strategy", "precision", "offload_optimizer", "offload_param", "lr")
    words = {key: f"{key}={_shown(getattr(config, key))}" for key in settings}
    product = f"{words['micro_batch']} x {rank.world_size} ranks x {words['accumulation']}"
    return {
        "train_batch_size": f"{product} = {config.micro_batch * rank.world_size * config.accumulation}",
        "train_micro_batch_size_per_gpu": words["micro_batch"],
        "gradient_accumulation_steps": words["accumulation"],
        "gradient_clipping": f"optim.grad_clip={config.optim.grad_clip:g}",
        "zero_optimization.stage": words["strategy"],
        "bf16.enabled": words["precision"],
        "fp16.enabled": words["precision"],
        "zero_optimization.offload_optimizer.device": words["offload_optimizer"],
        "zero_optimization.offload_param.device": words["offload_param"],
        "optimizer.type": "AdamW, the trainer's optimizer",
        "optimizer.params.lr": words["lr"],
        "optimizer.params.betas": f"optim.betas={_shown(list(config.optim.betas))}",
        "optimizer.params.weight_decay": f"optim.weight_decay={config.optim.weight_decay:g}",
    }


def _check_agreement(flat: Mapping[str, Any], config: TrainConfig, rank: Rank, path: str) -> None:
    expected = {
        **_trainer_settings(config, rank),
        "optimizer.type": "AdamW",
        "optimizer.params.lr": config.lr,
        "optimizer.params.betas": list(config.optim.betas),
        "optimizer.params.weight_decay": config.optim.weight_decay,
        "optimizer.params.eps": 1e-8,  # torch's default, which the trainer uses
    }
    origins = {**_origins(config, rank), "optimizer.params.eps": "eps=1e-8, the trainer's"}
    if config.strategy == "zero0" and config.precision == "bf16":
        expected["bf16.enabled"] = True  # torch_autocast does it, with the same meaning for the user
    wrong = [
        f"{key}={_shown(value)}, but {origins[key]}"
        for key, value in flat.items()
        if key in expected and value not in (AUTO, expected[key])
    ]
    strange = [key for key in flat if key.startswith("optimizer.") and key not in expected and flat[key] != AUTO]
    wrong += [f"{key}={_shown(flat[key])}, but the trainer's optimizer has no such setting" for key in strange]
    if wrong:
        raise UserError(f'{path}: {"; ".join(wrong)}: make both the same, or write "auto" there')


def _check_groups(flat: Mapping[str, Any], value_keys: Iterable[str], path: str) -> None:
    """
    Refuse a value in place of a group of keys, and a group in place of a value.

    Args:
        flat: the user's file, by dotted keys.
        value_keys: dotted keys that the trainer knows to be values.
        path: path of the file, for the message.
    """
    plain = next((key for key, value in flat.items() if key in GROUPS and value != AUTO), None)
    if plain:
        inner = next((key[len(plain) + 1 :] for key in value_keys if key.startswith(f"{plain}.")), "")
        example = f', such as {{"{inner}": "auto"}}' if inner and "." not in inner else ""
        raise UserError(
            f'{path}: {plain}={_shown(flat[plain])}: allowed: a group of keys in braces{example}, or "auto"'
        )
    group = next(
        (key_of_value for key_of_value in value_keys if any(key.startswith(f"{key_of_value}.") for key in flat)), None
    )
    if group:
        raise UserError(f'{path}: {group} is a group of keys there: allowed: one value, or "auto"')


def _defaults(config: TrainConfig, flat: Mapping[str, Any]) -> Dict[str, Any]:
    """Defaults, which the user's values override."""
    width = config.model.width
    found: Dict[str, Any] = {"steps_per_print": 1_000_000_000}  # the trainer logs its steps itself
    if config.precision == "bf16":
        if config.strategy == "zero0":
            found.update({"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"})
        else:
            found["bf16.check_grad_overflow"] = True  # a gradient that is not finite leaves the weights as they are
            # By default DeepSpeed adds micro batches in bf16; in fp32 it uses its BF16_Optimizer for stage 1 without offload.
            if ZERO_STAGES[config.strategy] > 1 or config.offload_optimizer or bf16_optimizer_skips():
                found["data_types.grad_accum_dtype"] = "fp32"
    sizes = {
        "zero_optimization.reduce_bucket_size": width * width,
        "zero_optimization.stage3_prefetch_bucket_size": width * width * 9 // 10,
        "zero_optimization.stage3_param_persistence_threshold": 10 * width,
    }
    # As the Hugging Face Trainer fills them, for whose files "auto" was made.
    found.update({key: value for key, value in sizes.items() if flat.get(key) == AUTO})
    return found


def _all_auto(value: JsonValue) -> bool:
    """There is nothing but "auto" and a type name, as in ready-made files."""
    if isinstance(value, dict):
        return all(key == "type" or _all_auto(inner) for key, inner in value.items())
    return bool(value == AUTO)


def _flat(tree: Mapping[str, Any], start: str = "") -> Dict[str, Any]:
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{start}{key}."))
        else:
            flat[f"{start}{key}"] = value
    return flat


def _nested(flat: Mapping[str, Any]) -> Dict[str, Any]:
    tree: Dict[str, Any] = {}
    for dotted, value in flat.items():
        *groups, name = dotted.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return tree


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Strings first: text in them that looks like a comment is not one.
TOKEN = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
TRAILING = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


def read_relaxed_json(path: str) -> Dict[str, Any]:
    """
    The mapping in a file as users write it for DeepSpeed: with comments, trailing commas, and 5e8 for an integer.
    Raises UserError: missing, unreadable, invalid, a duplicate key, NaN, or not a mapping.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read deepspeed={path} on the node of rank 0: {reason}") from exc

    def no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise UserError(f"{path}: key {twice[0]!r} is given twice")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise UserError(f"{path}: {name} is not a JSON number")

    def blank(match: re.Match[str]) -> str:
        """A comment as blanks of the same length, so that errors name the right line."""
        return match.group(1) or re.sub(r"[^\n]", " ", match.group())

    try:
        strict = TRAILING.sub(blank, TOKEN.sub(blank, text))
        tree = json.loads(strict, object_pairs_hook=no_duplicates, parse_float=_number, parse_constant=refuse)
    except ValueError as exc:
        raise UserError(f"{path}: not valid JSON (comments and trailing commas may stand in it): {exc}") from exc
    if not isinstance(tree, dict):
        raise UserError(f"{path}: the file must hold a mapping of keys to values, got {type(tree).__name__}")
    return tree


def _number(text: str) -> float:
    """Read 5e8 and 1.0 as integers: DeepSpeed uses them as counts."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is larger than any number here")
    return int(value) if value.is_integer() else value
