"""The keys of the configuration and their defaults. No torch here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence

from trainer.config.presets import SIZES
from trainer.config.schema import KeySchema
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
