"""The configuration: its keys and defaults, and how a file and `key=value` words become one value. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence

from trainer.config.parse import read_settings
from trainer.config.presets import SIZES
from trainer.config.schema import KeySchema
from trainer.errors import UserError
from trainer.values import FieldDefault

ZERO_STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
STRATEGIES = ("ddp", *ZERO_STAGES, "fsdp2")
CHECKPOINTS = ("auto", "whole", "sharded")
ACCUMULATE = ("sharded", "whole")
REPORTS = ("plot", "tensorboard", "wandb")
GPT_TASK = "trainer.tasks.gpt:Gpt"
LLAMA_TASK = "trainer.tasks.llama:Llama"
HF_TASK = "hf:"  # followed by a folder
FORMATS = ("auto", "bytes", "uint16", "uint32")
OPTIMIZERS = ("adamw", "sgd", "muon")
SCHEDULES = ("cosine", "wsd", "linear", "constant", "poly")
OPTIONS = "options."
SELECTIVE = "selective"  # of activation_checkpointing
BY_BATCH = 0  # accumulation is derived from batch once the world size is known


def _field(kind: str, default: object, **limits: Any) -> FieldDefault:
    """A key whose value may also be None if that is the default."""
    return field(default=default, metadata={"schema": KeySchema(kind, optional=default is None, **limits)})


def _int_field(default: int | None, *, low: int = 1) -> FieldDefault:
    return _field("int", default, low=low)


def _text_list_field(*default: str, choices: Sequence[str] = ()) -> FieldDefault:
    return _field("texts", default, choices=tuple(choices))


def _float_field(default: float | None, *, above: bool = False) -> FieldDefault:
    return _field("float", default, above=above)


def _flag_field(*, default: bool | None = False) -> FieldDefault:
    return _field("flag", default)


def _text_field(default: str | None, *, choices: Sequence[str] = ()) -> FieldDefault:
    return _field("text", default, choices=tuple(choices))


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
    """
    Files, folders or globs; no `paths` means the sources of the Python standard library, for a task that reads text.

    weights: shares of the entries of `paths` in the samples; without them all entries are one sequence.
    """

    paths: tuple[str, ...] = _text_list_field()
    validation: tuple[str, ...] = _text_list_field()
    weights: tuple[float, ...] = _field("weights", ())
    format: str = _text_field("auto", choices=FORMATS)
    tokenizer: str | None = _text_field(None)
    workers: int = _int_field(0, low=0)
    prefetch: int = _int_field(2)
    pin_memory: bool = _flag_field()


@dataclass(frozen=True)
class OptimConfig:
    """
    The optimizer and its learning rate (optim/schedule.py); grad_clip=0 does not clip, ema=0 keeps no average.

    momentum, nesterov: None: the usual ones of SGD or Muon.
    """

    name: str = _text_field("adamw", choices=OPTIMIZERS)
    weight_decay: float = _float_field(0.1)
    betas: tuple[float, float] = _field("betas", (0.9, 0.95))
    momentum: float | None = _float_field(None)
    nesterov: bool | None = _flag_field(default=None)
    ema: float = _float_field(0.0)
    grad_clip: float = _float_field(1.0)
    warmup_steps: int = _int_field(10, low=0)
    fused: bool = _flag_field()
    schedule: str = _text_field("cosine", choices=SCHEDULES)
    schedule_steps: int | None = _int_field(None)
    lr_floor: float = _float_field(0.1)
    decay_steps: int | None = _int_field(None)
    poly_power: float = _float_field(0.9, above=True)


@dataclass(frozen=True)
class LoraConfig:
    """Adapters beside frozen weights; none without a rank."""

    rank: int | None = _int_field(None)
    alpha: float = _float_field(16.0, above=True)
    targets: tuple[str, ...] = _text_list_field("q_proj", "v_proj")


@dataclass(frozen=True)
class FsdpConfig:
    """
    replicas: copies of the state, each sharded over its part of the ranks; reshard: free a block's weights after its forward pass;
    accumulate: the form in which a rank keeps the gradients of earlier micro batches of a step, its shard or the whole.
    """

    replicas: int = _int_field(1)
    reshard: bool = _flag_field(default=True)
    accumulate: str = _text_field("sharded", choices=ACCUMULATE)


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
    save_minutes: float | None = _float_field(None, above=True)
    save_share: float | None = _float_field(None, above=True)
    memory_steps: int | None = _int_field(None)
    save_total_limit: int = _int_field(3, low=2)
    keep_best: int = _int_field(0, low=0)
    keep_every: int | None = _int_field(None)
    async_save: bool = _flag_field()
    checkpoint: str = _text_field("auto", choices=CHECKPOINTS)
    roll_back: int = _int_field(0, low=0)
    strategy: str = _text_field("ddp", choices=STRATEGIES)
    deepspeed: str | None = _text_field(None)
    offload_optimizer: bool = _flag_field()
    offload_param: bool = _flag_field()
    find_unused_parameters: bool = _flag_field()
    gradient_as_bucket_view: bool | None = _flag_field(default=None)
    sync_batchnorm: bool = _flag_field()
    channels_last: bool = _flag_field()
    precision: str = _text_field("fp32", choices=("fp32", "bf16", "fp16"))
    tf32: bool = _flag_field()
    fp8: bool = _flag_field()
    activation_checkpointing: bool | str | int = _field("flag", default=False, choices=(SELECTIVE,), low=2)
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
    profile: str | None = _text_field(None)
    profile_ranks: tuple[str, ...] = _text_list_field("0")
    fingerprint_steps: int = _int_field(50, low=0)
    eval_steps: int | None = _int_field(None)
    eval_batches: int = _int_field(20)
    patience: int | None = _int_field(None)
    sample_prompts: tuple[str, ...] = _text_list_field()
    evaluate_only: bool = _flag_field()
    report: tuple[str, ...] = _text_list_field("plot", choices=REPORTS)
    peak_tflops: float | None = _float_field(None, above=True)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The dotted keys that were set, which the defaults of a device (defaults.py) leave as they are."""

    @property
    def profiled_steps(self) -> tuple[int, int]:
        """The first and the last step of `profile`; none if the last is 0."""
        first, _, last = (self.profile or "0:0").partition(":")
        return int(first), int(last)

    @property
    def profiled_ranks(self) -> tuple[int, ...]:
        return tuple(map(int, self.profile_ranks)) if self.profile else ()

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, as JSON has them."""
        plain = dataclasses.asdict(self)
        del plain["given"]
        plain["accumulation"] = self.accumulation or None
        plain["report"] = list(self.report)
        plain["profile_ranks"] = list(self.profile_ranks)
        plain["sample_prompts"] = list(self.sample_prompts)
        plain["data"].update({name: list(getattr(self.data, name)) for name in ("paths", "validation", "weights")})
        plain["optim"]["betas"] = list(self.optim.betas)
        plain["lora"]["targets"] = list(self.lora.targets)
        return plain


# The strategies that accept a setting which the others refuse.
BELONGS_TO = {
    "deepspeed": tuple(ZERO_STAGES),
    "offload_optimizer": ("zero1", "zero2", "zero3"),
    "offload_param": ("zero3",),
    "find_unused_parameters": ("ddp",),
    "gradient_as_bucket_view": ("ddp",),
    "sync_batchnorm": ("ddp",),
    "channels_last": ("ddp",),
    "fp8": ("ddp", "fsdp2"),
}
GROUPS: Dict[str, Any] = {
    "model": ModelConfig,
    "data": DataConfig,
    "optim": OptimConfig,
    "lora": LoraConfig,
    "fsdp": FsdpConfig,
}
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
    return _with_fine_tuning(_check_combinations(_build(values)))


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


def _check_combinations(config: TrainConfig) -> TrainConfig:
    """Check the limits that involve two keys, and the form of `task`."""
    module, _, name = config.task.partition(":")
    is_class = name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    if not is_class and not (config.task.startswith(HF_TASK) and name):
        raise UserError(
            f"task={config.task}: allowed: package.module:Class, such as mypackage.tasks:Segmentation, or {HF_TASK}FOLDER, "
            "a model of Hugging Face"
        )
    _check_profile(config)
    _check_optimizer(config)
    if config.init and config.resume not in ("auto", "none"):
        raise UserError(
            f"init={config.init} starts from weights, resume={config.resume} continues a training: name one"
        )
    if config.task.startswith(HF_TASK) and config.init is None:
        config = dataclasses.replace(config, init=name)
    if config.model.width % config.model.heads:
        raise UserError(
            f"model.width={config.model.width} must be a multiple of model.heads={config.model.heads}: "
            "every head gets an equal part"
        )
    _check_lora(config)
    _check_strategy(config)
    if config.data.weights and len(config.data.weights) != len(config.data.paths):
        raise UserError(
            f"data.weights has {len(config.data.weights)} numbers and data.paths {len(config.data.paths)} entries: give each entry its share"
        )
    if config.patience and not config.eval_steps:
        raise UserError(f"patience={config.patience} counts evaluations: set eval_steps, such as eval_steps=100")
    if config.save_share is not None and config.save_share >= 1:
        raise UserError(f"save_share={config.save_share:g}: allowed: a share of the time below 1, such as 0.02")
    if (config.strategy, config.precision) == ("zero0", "fp16"):
        raise UserError("strategy=zero0 shards nothing and has no exact resume with precision=fp16: use strategy=ddp")
    return config


def _check_optimizer(config: TrainConfig) -> None:
    optim, strategy = config.optim, config.strategy
    if optim.name == "sgd" and strategy in ZERO_STAGES:
        raise UserError(
            f"optim.name=sgd goes with strategy=ddp or fsdp2, not {strategy}, whose state is saved as Adam's"
        )
    if optim.name == "muon" and strategy != "ddp":
        raise UserError(f"optim.name=muon needs whole matrices: it goes with strategy=ddp, not {strategy}")
    if optim.ema and strategy in ZERO_STAGES:
        raise UserError(f"optim.ema={optim.ema:g} goes with strategy=ddp or fsdp2, not {strategy}")
    if optim.ema >= 1:
        raise UserError(f"optim.ema={optim.ema:g}: allowed: a number from 0 to below 1, such as 0.999")
    for key, value in (("momentum", optim.momentum), ("nesterov", optim.nesterov)):
        if value is not None and optim.name == "adamw":
            raise UserError(f"optim.{key} goes with optim.name=sgd or muon; AdamW has optim.betas")
    if optim.name == "sgd" and optim.betas != OptimConfig.betas:
        raise UserError("optim.betas goes with optim.name=adamw or muon; SGD has optim.momentum")
    if optim.momentum is not None and optim.momentum >= 1:
        raise UserError(f"optim.momentum={optim.momentum:g}: allowed: a number from 0 to below 1, such as 0.9")
    if optim.nesterov and optim.momentum == 0:
        raise UserError("optim.nesterov=true needs a momentum: leave out optim.momentum=0")


def _check_strategy(config: TrainConfig) -> None:
    for key, strategies in BELONGS_TO.items():
        if getattr(config, key) and config.strategy not in strategies:
            value = config.deepspeed if key == "deepspeed" else "true"
            raise UserError(f"{key}={value} goes with strategy={' or '.join(strategies)}, not {config.strategy}")
    if config.activation_checkpointing == SELECTIVE and config.strategy == "zero3":
        raise UserError("activation_checkpointing=selective does not go with strategy=zero3: take true, or fsdp2")
    if config.fsdp != FsdpConfig() and config.strategy != "fsdp2":
        raise UserError(
            f"fsdp.replicas, fsdp.reshard and fsdp.accumulate go with strategy=fsdp2, not {config.strategy}"
        )


def _check_profile(config: TrainConfig) -> None:
    if config.profile and not _is_range(config.profile):
        raise UserError(f"profile={config.profile}: allowed: START:STOP, the first and the last step, such as 10:12")
    if config.profiled_steps[0] > config.steps:
        raise UserError(f"profile={config.profile}: begins after the last step, steps={config.steps}")
    if not all(rank.isdecimal() for rank in config.profile_ranks):
        raise UserError(f"profile_ranks={','.join(config.profile_ranks)}: allowed: numbers of ranks, such as 0,1")


def _is_range(text: str) -> bool:
    first, _, last = text.partition(":")
    return first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)


def _check_lora(config: TrainConfig) -> None:
    if config.lora == LoraConfig():
        return
    if config.fp8:
        raise UserError("fp8=true does not go with lora.rank: adapters are too small for it")
    if config.lora.rank is None:
        raise UserError("lora.alpha and lora.targets need lora.rank, such as lora.rank=8")
    if not config.lora.targets:
        raise UserError("lora.targets is empty: name linear layers, such as q_proj,v_proj")
    if not config.task.startswith(HF_TASK) and config.task != LLAMA_TASK:
        raise UserError(
            f"lora.rank={config.lora.rank} goes with task={HF_TASK}FOLDER or {LLAMA_TASK}, not {config.task}"
        )
    if config.init is None:
        raise UserError(f"lora.rank={config.lora.rank}: name by init= the weights beside which adapters are trained")
    if config.strategy == "zero3" and config.task != LLAMA_TASK:
        raise UserError(
            f"lora.rank={config.lora.rank} strategy=zero3 goes with task={LLAMA_TASK} init=FOLDER: DeepSpeed does not split the frozen "
            "weights of a model of transformers; strategy=fsdp2 does"
        )
