"""The configuration: its keys and defaults, and how a file and `key=value` words become one value. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence

from trainer.config.parse import read_settings
from trainer.config.presets import SIZES
from trainer.config.schema import Rule
from trainer.errors import UserError

ZERO_STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
STRATEGIES = ("ddp", *ZERO_STAGES, "fsdp2")
REPORTS = ("plot", "tensorboard", "wandb")
GPT_TASK = "trainer.tasks.gpt:Gpt"
FORMATS = ("auto", "bytes", "uint16", "uint32")
OPTIONS = "options."
BY_BATCH = 0  # accumulation is derived from batch once the world size is known


def _count(default: int | None, *, low: int = 1) -> Any:  # noqa: ANN401 -- dataclasses.field has no nameable type
    return field(default=default, metadata={"rule": Rule("int", low=low, optional=default is None)})


def _texts(*default: str, choices: Sequence[str] = ()) -> Any:  # noqa: ANN401 -- as above
    return field(default=default, metadata={"rule": Rule("texts", choices=tuple(choices))})


def _number(default: float, *, low: float = 0.0, above: bool = False) -> Any:  # noqa: ANN401 -- as above
    return field(default=default, metadata={"rule": Rule("float", low=low, above=above)})


def _flag(default: bool | None = False) -> Any:  # noqa: ANN401, FBT001, FBT002 -- as above; as the others
    return field(default=default, metadata={"rule": Rule("flag", optional=default is None)})


def _text(default: str | None, *, choices: Sequence[str] = ()) -> Any:  # noqa: ANN401 -- as above
    return field(default=default, metadata={"rule": Rule("text", choices=tuple(choices), optional=default is None)})


@dataclass(frozen=True)
class ModelConfig:
    """The GPT; `size` gives the shape where nothing else does."""

    size: str = _text("1m", choices=tuple(SIZES))
    layers: int = _count(SIZES["1m"]["layers"])
    width: int = _count(SIZES["1m"]["width"])
    heads: int = _count(SIZES["1m"]["heads"])
    context: int = _count(SIZES["1m"]["context"])
    vocabulary: int = _count(256)


@dataclass(frozen=True)
class DataConfig:
    """Files, folders or globs; no `paths` means the sources of the Python standard library, for a task that reads text."""

    paths: tuple[str, ...] = _texts()
    validation: tuple[str, ...] = _texts()
    format: str = _text("auto", choices=FORMATS)
    workers: int = _count(0, low=0)
    prefetch: int = _count(2)
    pin_memory: bool = _flag()


@dataclass(frozen=True)
class OptimConfig:
    """AdamW; grad_clip=0 leaves the gradients alone."""

    weight_decay: float = _number(0.1)
    betas: tuple[float, float] = field(default=(0.9, 0.95), metadata={"rule": Rule("betas")})
    grad_clip: float = _number(1.0)
    warmup_steps: int = _count(10, low=0)
    fused: bool = _flag()


@dataclass(frozen=True)
class TrainConfig:
    """
    Every setting of a training run; with_ranks() completes it. `out` None: $ORCH_RUN_DIR/checkpoints under orch, ./out elsewhere.

    options: keyword arguments of the class that `task` names.
    """

    steps: int = _count(100)
    seed: int = _count(0, low=0)
    task: str = _text(GPT_TASK)
    deterministic: bool = _flag()
    out: str | None = _text(None)
    resume: str = _text("auto")
    save_steps: int = _count(50)
    save_minutes: float | None = field(default=None, metadata={"rule": Rule("float", above=True, optional=True)})
    save_total_limit: int = _count(3, low=2)
    keep_best: int = _count(0, low=0)
    keep_every: int | None = field(default=None, metadata={"rule": Rule("int", low=1, optional=True)})
    async_save: bool = _flag()
    roll_back: int = _count(0, low=0)
    strategy: str = _text("ddp", choices=STRATEGIES)
    deepspeed: str | None = _text(None)
    offload_optimizer: bool = _flag()
    offload_param: bool = _flag()
    find_unused_parameters: bool = _flag()
    gradient_as_bucket_view: bool | None = _flag(None)
    precision: str = _text("fp32", choices=("fp32", "bf16", "fp16"))
    activation_checkpointing: bool = _flag()
    compile: bool = _flag()
    micro_batch: int = _count(8)
    accumulation: int = field(default=1, metadata={"rule": Rule("int", low=1, optional=True)})
    batch: int | None = _count(None)
    lr: float = _number(3e-3)
    device: str = _text("auto", choices=("auto", "cuda", "gcu", "cpu"))
    ddp_timeout: float = _number(1800.0, above=True)
    hang_timeout: float = _number(300.0, above=True)
    log_steps: int = _count(10)
    eval_steps: int | None = _count(None)
    eval_batches: int = _count(20)
    report: tuple[str, ...] = _texts("plot", choices=REPORTS)
    peak_tflops: float | None = field(default=None, metadata={"rule": Rule("float", above=True, optional=True)})
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
        for key, value in _flatten(read_settings(path), where=path).items():
            values[key] = rule_of(key, where=path).check(key, value, where=path)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"expected key=value, got {word!r}; for example steps=20 or model.layers=2")
        values[key] = rule_of(key, where="").parse(key, text)
    return _whole(_build(values))


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


def rule_of(key: str, *, where: str) -> Rule:
    """The rule of a dotted key; for an unknown key, a UserError names the nearest one."""
    rules = rules_by_key()
    if key in rules:
        return rules[key]
    if key.startswith(OPTIONS) and key[len(OPTIONS) :].isidentifier():
        return Rule("value")
    start = f"{where}: " if where else ""
    members = [name for name in (*rules, f"{OPTIONS}NAME") if name.startswith(f"{key}.")]
    if members:
        raise UserError(f"{start}{key!r} is a group, not a key: set one of {', '.join(members)}")
    near = difflib.get_close_matches(key, rules, n=1, cutoff=0.6) or [
        name for name in rules if name.rpartition(".")[2] == key
    ]
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{start}unknown key {key!r}{guess}\nkeys: {', '.join(rules)}")


def rules_by_key() -> dict[str, Rule]:
    """Dotted key -> rule, in the order of the dataclasses."""
    rules: Dict[str, Rule] = {}
    for outer in dataclasses.fields(TrainConfig):
        if "rule" in outer.metadata:
            rules[outer.name] = outer.metadata["rule"]
        elif outer.name in GROUPS:
            inner = dataclasses.fields(GROUPS[outer.name])
            rules.update({f"{outer.name}.{one.name}": one.metadata["rule"] for one in inner})
    return rules


def _flatten(tree: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """{"model": {"layers": 2}} -> {"model.layers": 2}; a value that should be a group is reported as one."""
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        is_group = key in GROUPS or f"{key}." == OPTIONS
        if is_group and isinstance(value, dict):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif is_group:
            raise UserError(f"{where}: {key!r} is a group of keys, got {value!r}")
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
        raise UserError(f"{given}: of the GPT alone; what task={top['task']} takes is written {OPTIONS}NAME=VALUE")
    if top.get("accumulation") is None:
        top["accumulation"] = BY_BATCH if top.get("batch") else 1
    return TrainConfig(**top, **groups, options=nested["options"])


def _whole(config: TrainConfig) -> TrainConfig:
    """Check the limits that involve two keys, and the form of `task`."""
    module, _, name = config.task.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"task={config.task}: allowed: package.module:Class, such as mypackage.tasks:Segmentation")
    if config.model.width % config.model.heads:
        raise UserError(
            f"model.width={config.model.width} must be a multiple of model.heads={config.model.heads}: "
            "every head gets an equal part"
        )
    for key, strategies in BELONGS_TO.items():
        if getattr(config, key) and config.strategy not in strategies:
            value = config.deepspeed if key == "deepspeed" else "true"
            raise UserError(f"{key}={value} goes with strategy={' or '.join(strategies)}, not {config.strategy}")
    if (config.strategy, config.precision) == ("zero0", "fp16"):
        raise UserError("strategy=zero0 shards nothing and has no exact resume with precision=fp16: use strategy=ddp")
    return config
