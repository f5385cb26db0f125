"""Settings that exclude each other."""

from __future__ import annotations

import dataclasses

from trainer.config.config import (
    BELONGS_TO,
    HF_TASK,
    LLAMA_TASK,
    SELECTIVE,
    ZERO_STAGES,
    FsdpConfig,
    LoraConfig,
    OptimConfig,
    TrainConfig,
)
from trainer.errors import UserError


def check_combinations(config: TrainConfig) -> TrainConfig:
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
