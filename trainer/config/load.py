"""One configuration from a file and `key=value` words, and what depends on the checkpoint to continue from or the number of ranks."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from typing import Any, Dict, Mapping, Sequence

from trainer.config.combinations import check_combinations
from trainer.config.config import BY_BATCH, GPT_TASK, GROUPS, OPTIONS, ModelConfig, TrainConfig
from trainer.config.parse import read_settings
from trainer.config.presets import SIZES
from trainer.config.schema import KeySchema
from trainer.errors import UserError

FINE_TUNING = ("lr", "optim.weight_decay", "optim.warmup_steps")
FINE_TUNING_RATE, LORA_RATE, WARMUP_SHARE = 1e-5, 1e-4, 0.03
# Below this number of parameters, this learning rate.
RATES = (
    *((20e6, 3e-3), (80e6, 1e-3), (250e6, 6e-4), (550e6, 3e-4), (1e9, 2.5e-4), (2e9, 2e-4), (4.5e9, 1.6e-4)),
    (float("inf"), 1.2e-4),
)


def load_config(path: str | None = None, words: Sequence[str] = ()) -> TrainConfig:
    """
    Defaults, then the file, then `key=value` words, the last one winning.
    Raises UserError: an unknown key, a wrong value, an unreadable file; the message names the key and what is allowed.
    """
    values: Dict[str, Any] = {}
    if path is not None:
        for key, value in _flatten(read_settings(path), source=path).items():
            values[key] = schema_of(key, source=path).check(key, value, source=path)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"expected key=value, got {word!r}; for example steps=20 or model.layers=2")
        values[key] = schema_of(key, source="").parse(key, text)
    return _with_fine_tuning(check_combinations(_build(values)))


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the settings with other values of these dotted keys, which count as not given."""
    for key, value in values.items():
        group, dot, name = key.rpartition(".")
        changed = dataclasses.replace(getattr(config, group), **{name: value}) if dot else value
        config = dataclasses.replace(config, **{group if dot else name: changed})
    return config


def _with_fine_tuning(config: TrainConfig) -> TrainConfig:
    """Set the defaults of FINE_TUNING for weights that exist, init= or task=hf:, as the rates of a start from nothing would destroy them."""
    if config.init is None:
        return config
    steps = config.optim.schedule_steps or config.steps
    values = {"optim.weight_decay": 0.0, "optim.warmup_steps": int(WARMUP_SHARE * steps)}
    if config.optim.name != "sgd":
        values["lr"] = LORA_RATE if config.lora.rank else FINE_TUNING_RATE
    return with_values(config, {key: value for key, value in values.items() if key not in config.given})


def with_saved(config: TrainConfig, saved: Mapping[str, Any]) -> TrainConfig:
    """Keep the settings of FINE_TUNING of the checkpoint to continue from, `saved`, that are not given: their defaults depend on `init` and `steps`."""
    if config.init is None and saved.get("init") is None:
        return config
    flat = {**saved, **{f"optim.{name}": value for name, value in saved.get("optim", {}).items()}}
    return with_values(config, {key: flat[key] for key in FINE_TUNING if key in flat and key not in config.given})


def with_ranks(config: TrainConfig, world_size: int) -> TrainConfig:
    """
    Derive the accumulation from `batch` and the world size, if `batch` is given.

    Raises:
        UserError: `batch` is no multiple of micro_batch x world size, or contradicts the given accumulation; or the ranks cannot be
            divided into fsdp.replicas.
    """
    if world_size % config.fsdp.replicas:
        raise UserError(
            f"fsdp.replicas={config.fsdp.replicas} does not divide {world_size} rank{'s' if world_size > 1 else ''} into equal "
            "parts: take a number that does, such as the number of nodes"
        )
    if config.batch is None:
        return config
    unit = config.micro_batch * world_size
    product = f"micro_batch={config.micro_batch} x {world_size} rank{'s' if world_size > 1 else ''}"
    if config.accumulation != BY_BATCH and config.batch != unit * config.accumulation:
        raise UserError(
            f"batch={config.batch}, but {product} x accumulation={config.accumulation} = {unit * config.accumulation}: "
            "leave batch or accumulation out"
        )
    below = config.batch - config.batch % unit
    if config.batch != below:
        near = f"{below} and {below + unit}" if below else str(unit)
        raise UserError(f"batch={config.batch} is no multiple of {product} = {unit}; nearest to it: {near}")
    return dataclasses.replace(config, accumulation=config.batch // unit)


def schema_of(key: str, *, source: str) -> KeySchema:
    """The schema of a dotted key; for an unknown key, a UserError names the nearest one."""
    schemas = schemas_by_key()
    if key in schemas:
        return schemas[key]
    if key.startswith(OPTIONS) and key[len(OPTIONS) :].isidentifier():
        return KeySchema("value")
    start = f"{source}: " if source else ""
    members = [name for name in (*schemas, f"{OPTIONS}NAME") if name.startswith(f"{key}.")]
    if members:
        raise UserError(f"{start}{key!r} is a group, not a key: set one of {', '.join(members)}")
    same = [name for name in schemas if name.rpartition(".")[2] == key.rpartition(".")[2]]  # in another group
    near = same or difflib.get_close_matches(key, schemas, n=1, cutoff=0.6)
    if near:
        raise UserError(f"{start}unknown key {key!r}; did you mean {near[0]!r}?")
    keys = textwrap.fill(f"keys: {', '.join(schemas)}", 120, break_on_hyphens=False)
    raise UserError(f"{start}unknown key {key!r}\n{keys}")


def schemas_by_key() -> dict[str, KeySchema]:
    """Dotted key -> its schema, in the order of the dataclasses."""
    schemas: Dict[str, KeySchema] = {}
    for outer in dataclasses.fields(TrainConfig):
        if "schema" in outer.metadata:
            schemas[outer.name] = outer.metadata["schema"]
        elif outer.name in GROUPS:
            inner = dataclasses.fields(GROUPS[outer.name])
            schemas.update(
                {f"{outer.name}.{inner_field.name}": inner_field.metadata["schema"] for inner_field in inner}
            )
    return schemas


def _flatten(tree: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """{"model": {"layers": 2}} -> {"model.layers": 2}; a value that should be a group is reported as one."""
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        is_group = key in GROUPS or f"{key}." == OPTIONS
        if is_group and isinstance(value, dict):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif is_group:
            raise UserError(f"{source}: {key!r} is a group of keys, got {value!r}")
        else:
            flat[str(key)] = value
    return flat


def _build(values: Mapping[str, Any]) -> TrainConfig:
    top: Dict[str, Any] = {}
    nested: Dict[str, Dict[str, Any]] = {group: {} for group in (*GROUPS, "options")}
    for key, value in values.items():
        group, dot, name = key.partition(".")
        if dot:
            nested[group][name] = value
        else:
            top[key] = value
    nested["model"] = {**SIZES.get(nested["model"].get("size", ""), {}), **nested["model"]}
    groups = {group: kind(**nested[group]) for group, kind in GROUPS.items()}
    if top.get("task", GPT_TASK) != GPT_TASK and groups["model"] != ModelConfig():
        given = ", ".join(f"model.{name}" for name in nested["model"])
        raise UserError(f"{given}: for the GPT only; options of task={top['task']} are written {OPTIONS}NAME=VALUE")
    if top.get("accumulation") is None:
        top["accumulation"] = BY_BATCH if top.get("batch") else 1
    config = TrainConfig(**top, **groups, options=nested["options"], given=frozenset(values))
    return (
        config if "lr" in values or config.task != GPT_TASK else dataclasses.replace(config, lr=rate_of(config.model))
    )


def rate_of(model: ModelConfig) -> float:
    """The default learning rate of a GPT: from 100 M parameters on that of GPT-3, by size (Brown et al. 2020, table 2.1)."""
    parameters = 12 * model.layers * model.width**2 + 2 * model.vocabulary * model.width
    return next(rate for limit, rate in RATES if parameters < limit)
