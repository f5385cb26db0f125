"""The shape of a Llama, from the config.json of a Hugging Face model. No torch here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.values import JsonValue

CONFIG_FILE = "config.json"
CONTEXT = 2048  # unless the model allows less
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class LlamaShape:
    """
    Sizes and variants of one model.

    feed: width inside the feed-forward. head_norms: queries and keys are normalised, as in Qwen 3. rope_scaling: the four numbers
    of Llama 3.1, in the order of LLAMA3_ROPE; none if empty. window: how many tokens a token sees, if limited. raw: the whole file.
    """

    layers: int
    width: int
    feed: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Tuple[float, ...]
    tied: bool
    query_bias: bool
    output_bias: bool
    head_norms: bool
    window: int | None
    std: float
    raw: Mapping[str, Any]


def named_shape(config: TrainConfig, shape: object = "", context: object = 0) -> Tuple[Path, LlamaShape, int]:
    """
    The path and the shape of the model of tasks/llama.py, and the tokens of a sample.

    Args:
        shape: options.shape, a config.json of Hugging Face, or a folder that has one; by default the folder in init=.
        context: options.context; by default 2048, or as many as the model allows.

    Raises:
        UserError: no shape is named, or a wrong one, or the context is too long.
    """
    folder = config.init if config.init and not config.init.endswith(".safetensors") else ""
    shape = shape or folder
    if not shape or not isinstance(shape, str):
        raise UserError(
            "options.shape: name a config.json of Hugging Face, or a folder that has one; init=FOLDER names both shape and weights"
        )
    path = Path(shape).expanduser()
    found = read_shape(path)
    longest = min(found.context, found.window or found.context)
    context = context or min(CONTEXT, longest)
    if type(context) is not int or not 1 <= context <= longest:
        raise UserError(f"options.context={context}: allowed: 1 to {longest}, the longest of {path}")
    return path, found, context


def read_shape(path: Path) -> LlamaShape:
    """
    Read a config.json, given by its path or by its folder.
    Raises UserError: it cannot be read, or describes a model that is not shaped like a Llama.
    """
    config = read_json(path)
    path = path / CONFIG_FILE if path.is_dir() else path
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no mapping of keys to values, as the config.json of a model does")
    try:
        return shape_of(config)
    except KeyError as exc:
        raise UserError(f"{path}: has no {exc}") from exc
    except (ValueError, TypeError, AttributeError) as exc:
        raise UserError(f"{path}: {exc}") from exc


def read_json(path: Path, start: str = "", remedy: str = "") -> JsonValue:
    """The content of a config.json, given by its path or by its folder. Raises UserError, with these words around the reason."""
    try:
        path = path / CONFIG_FILE if path.is_dir() else path
        return json.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise UserError(f"{start}{path}: cannot be read: {exc.strerror}{remedy}") from exc
    except ValueError as exc:
        raise UserError(f"{start}{path}: not valid JSON: {exc}") from exc


def shape_of(config: Mapping[str, Any]) -> LlamaShape:
    """Raises ValueError for another kind of model, KeyError for a missing key, TypeError for a value of another type."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type={family}: models of type {', '.join(FAMILIES)} can be trained")
    act, mlp_bias = config.get("hidden_act", "silu"), config.get("mlp_bias", False)
    if act != "silu" or mlp_bias:
        raise ValueError(f"hidden_act={act} mlp_bias={json.dumps(mlp_bias)}: only silu without biases can be trained")
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise ValueError("layer_types has sliding_attention: only full_attention can be trained")
    width, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    head_width = _count(config, "head_dim", width // heads)
    if head_width % 2:
        raise ValueError(f"head_dim={head_width}: rotary positions need an even number")
    rope_theta, rope_scaling = _rope(config)
    has_bias = bool(config.get("attention_bias", False))
    has_window = config.get("use_sliding_window", config["model_type"] == "mistral")
    return LlamaShape(
        layers=_count(config, "num_hidden_layers"),
        width=width,
        feed=_count(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        vocabulary=_count(config, "vocab_size"),
        context=_count(config, "max_position_embeddings"),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tied=bool(config.get("tie_word_embeddings", False)),
        query_bias=has_bias or family == "qwen2",
        output_bias=has_bias,
        head_norms=family == "qwen3",
        window=_count(config, "sliding_window") if has_window and config.get("sliding_window") is not None else None,
        std=_number(config, "initializer_range", 0.02),
        raw=config,
    )


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config[key] if default is None else config.get(key)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ValueError(f"{key}={json.dumps(value)}: a whole number from 1 on is needed")
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{key}={json.dumps(value)}: a number above 0 is needed")
    return float(value)


def _rope(config: Mapping[str, Any]) -> Tuple[float, Tuple[float, ...]]:
    """Base and scaling; transformers 5 writes both as rope_parameters, older versions as rope_theta and rope_scaling."""
    rope: Dict[str, Any] = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0)
    if kind == "default":
        return theta, ()
    if kind != "llama3":
        raise ValueError(f"rope_type={kind}: default and llama3 can be trained")
    return theta, tuple(float(rope[key]) for key in LLAMA3_ROPE)
