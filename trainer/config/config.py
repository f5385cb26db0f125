"""The configuration: its keys and defaults, and how a file and `key=value` words become one value. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence

from trainer.config.parse import read_settings
from trainer.config.presets import SIZES
from trainer.config.schema import KeySchema
from trainer.errors import UserError

ZERO_STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
STRATEGIES = ("ddp", *ZERO_STAGES, "fsdp2")
CHECKPOINTS = ("auto", "whole", "sharded")
REPORTS = ("plot", "tensorboard", "wandb")
GPT_TASK = "trainer.tasks.gpt:Gpt"
FORMATS = ("auto", "bytes", "uint16", "uint32")
SCHEDULES = ("cosine", "wsd", "linear", "constant", "poly")
OPTIONS = "options."
BY_BATCH = 0  # accumulation is derived from batch once the world size is known


def _int_field(default: int | None, *, low: int = 1) -> Any:  # noqa: ANN401 -- dataclasses.field has no nameable type
    return field(default=default, metadata={"schema": KeySchema("int", low=low, optional=default is None)})


def _text_list_field(*default: str, choices: Sequence[str] = ()) -> Any:  # noqa: ANN401 -- as above
    return field(default=default, metadata={"schema": KeySchema("texts", choices=tuple(choices))})


def _float_field(default: float, *, low: float = 0.0, above: bool = False) -> Any:  # noqa: ANN401 -- as above
    return field(default=default, metadata={"schema": KeySchema("float", low=low, above=above)})


def _flag_field(default: bool | None = False) -> Any:  # noqa: ANN401, FBT001, FBT002 -- as above; as the others
    return field(default=default, metadata={"schema": KeySchema("flag", optional=default is None)})


def _text_field(default: str | None, *, choices: Sequence[str] = ()) -> Any:  # noqa: ANN401 -- as above
    return field(
        default=default, metadata={"schema": KeySchema("text", choices=tuple(choices), optional=default is None)}
    )


@dataclass(frozen=True)
class ModelConfig:
    """The GPT; `size` gives the values that are not set."""

    size: str = _text_field("1m", choices=tuple(SIZES))
    layers: int = _int_field(SIZES["1m"]["layers"])
    width: int = _int_field(SIZES["1m"]["width"])
    heads: int = _int_field(SIZES["1m"]["heads"])
    context: int = _int_field(SIZES["1m"]["context"])
    vocabulary: int = _int_field(256)


@dataclass(frozen=True)
class DataConfig:
    """Files, folders or globs; no `paths` means the sources of the Python standard library, for a task that reads text."""

    paths: tuple[str, ...] = _text_list_field()
    validation: tuple[str, ...] = _text_list_field()
    format: str = _text_field("auto", choices=FORMATS)
    workers: int = _int_field(0, low=0)
    prefetch: int = _int_field(2)
    pin_memory: bool = _flag_field()


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its learning rate (optim/schedule.py); grad_clip=0 does not clip."""

    weight_decay: float = _float_field(0.1)
    betas: tuple[float, float] = field(default=(0.9, 0.95), metadata={"schema": KeySchema("betas")})
    grad_clip: float = _float_field(1.0)
    warmup_steps: int = _int_field(10, low=0)
    fused: bool = _flag_field()
    schedule: str = _text_field("cosine", choices=SCHEDULES)
    schedule_steps: int | None = _int_field(None)
    lr_floor: float = _float_field(0.1)
    decay_steps: int | None = _int_field(None)
    poly_power: float = _float_field(0.9, above=True)


@dataclass(frozen=True)
class TrainConfig:
    """
    Every setting of a training run; with_ranks() completes it. `out` None: $ORCH_RUN_DIR/checkpoints under orch, ./out elsewhere.

    options: keyword arguments of the class that `task` names.
    """

    steps: int = _int_field(100)
    seed: int = _int_field(0, low=0)
    task: str = _text_field(GPT_TASK)
    deterministic: bool = _flag_field()
    out: str | None = _text_field(None)
    resume: str = _text_field("auto")
    init: str | None = _text_field(None)
    save_steps: int = _int_field(50)
    save_minutes: float | None = field(default=None, metadata={"schema": KeySchema("float", above=True, optional=True)})
    save_total_limit: int = _int_field(3, low=2)
    keep_best: int = _int_field(0, low=0)
    keep_every: int | None = field(default=None, metadata={"schema": KeySchema("int", low=1, optional=True)})
    async_save: bool = _flag_field()
    checkpoint: str = _text_field("auto", choices=CHECKPOINTS)
    roll_back: int = _int_field(0, low=0)
    strategy: str = _text_field("ddp", choices=STRATEGIES)
    deepspeed: str | None = _text_field(None)
    offload_optimizer: bool = _flag_field()
    offload_param: bool = _flag_field()
    find_unused_parameters: bool = _flag_field()
    gradient_as_bucket_view: bool | None = _flag_field(None)
    precision: str = _text_field("fp32", choices=("fp32", "bf16", "fp16"))
    activation_checkpointing: bool = _flag_field()
    compile: bool = _flag_field()
    micro_batch: int = _int_field(8)
    accumulation: int = field(default=1, metadata={"schema": KeySchema("int", low=1, optional=True)})
    batch: int | None = _int_field(None)
    lr: float = _float_field(3e-3)
    device: str = _text_field("auto", choices=("auto", "cuda", "gcu", "cpu"))
    ddp_timeout: float = _float_field(1800.0, above=True)
    start_timeout: float = _float_field(120.0, above=True)
    hang_timeout: float = _float_field(300.0, above=True)
    log_steps: int = _int_field(10)
    fingerprint_steps: int = _int_field(50, low=0)
    eval_steps: int | None = _int_field(None)
    eval_batches: int = _int_field(20)
    report: tuple[str, ...] = _text_list_field("plot", choices=REPORTS)
    peak_tflops: float | None = field(default=None, metadata={"schema": KeySchema("float", above=True, optional=True)})
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, as JSON has them."""
        plain = dataclasses.asdict(self)
        plain["accumulation"] = self.accumulation or None
        plain["report"] = list(self.report)
        plain["data"].update(paths=list(self.data.paths), validation=list(self.data.validation))
        plain["optim"]["betas"] = list(self.optim.betas)
        return plain


# The strategies that accept a setting which the others refuse.
BELONGS_TO = {
    "deepspeed": tuple(ZERO_STAGES),
    "offload_optimizer": ("zero1", "zero2", "zero3"),
    "offload_param": ("zero3",),
    "find_unused_parameters": ("ddp",),
    "gradient_as_bucket_view": ("ddp",),
    "compile": ("ddp", "fsdp2", "zero0", "zero1", "zero2"),
}
GROUPS: Dict[str, Any] = {"model": ModelConfig, "data": DataConfig, "optim": OptimConfig}


def load_config(path: str | None = None, words: Sequence[str] = ()) -> TrainConfig:
    """
    Defaults, then the file, then `key=value` words, the last one winning.

    Raises:
        UserError: an unknown key, a wrong value, an unreadable file; the message names the key and what is allowed.
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
    return _check_combinations(_build(values))


def with_ranks(config: TrainConfig, world_size: int) -> TrainConfig:
    """
    Derive the accumulation from `batch` and the world size, if `batch` is given.

    Raises:
        UserError: `batch` is no multiple of micro_batch x world size, or contradicts the given accumulation.
    """
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
    near = difflib.get_close_matches(key, schemas, n=1, cutoff=0.6) or [
        name for name in schemas if name.rpartition(".")[2] == key
    ]
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{start}unknown key {key!r}{guess}\nkeys: {', '.join(schemas)}")


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
    return TrainConfig(**top, **groups, options=nested["options"])


def _check_combinations(config: TrainConfig) -> TrainConfig:
    """Check the limits that involve two keys, and the form of `task`."""
    module, _, name = config.task.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"task={config.task}: allowed: package.module:Class, such as mypackage.tasks:Segmentation")
    if config.init and config.resume not in ("auto", "none"):
        raise UserError(
            f"init={config.init} starts from weights, resume={config.resume} continues a training: name one"
        )
    if config.model.width % config.model.heads:
        raise UserError(
            f"model.width={config.model.width} must be a multiple of model.heads={config.model.heads}: "
            "every head gets an equal part"
        )
    for key, strategies in BELONGS_TO.items():
        if getattr(config, key) and config.strategy not in strategies:
            value = config.deepspeed if key == "deepspeed" else "true"
            raise UserError(f"{key}={value} goes with strategy={' or '.join(strategies)}, not {config.strategy}")
    if config.checkpoint == "sharded" and config.async_save:
        raise UserError("async_save=true writes whole files: use checkpoint=whole, or leave async_save out")
    if (config.strategy, config.precision) == ("zero0", "fp16"):
        raise UserError("strategy=zero0 shards nothing and has no exact resume with precision=fp16: use strategy=ddp")
    return config
