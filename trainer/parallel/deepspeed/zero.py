"""DeepSpeed's ZeRO 0 to 3. The engine makes the steps; configuration, learning rate and checkpoints are the trainer's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Sequence, Tuple

import torch

from trainer.config.config import ZERO_STAGES, TrainConfig
from trainer.console import log_line
from trainer.errors import UserError
from trainer.io import replace_text
from trainer.optim.optimizer import make_optimizer
from trainer.parallel.buffers import Buffers, refuse_batch_norm
from trainer.parallel.building import build_fillable, build_plain, build_whole, fill, initial_values, sizes_of
from trainer.parallel.compiling import compile_blocks
from trainer.parallel.deepspeed import state as zero_state
from trainer.parallel.deepspeed.config import deepspeed_config, read_relaxed_json, strict_json
from trainer.parallel.deepspeed.cpu_adam import cpu_adam
from trainer.parallel.deepspeed.package import clips_fp16_alone, package_warning
from trainer.parallel.parts import (
    LocalState,
    Part,
    allocate_moments,
    buffer_parts,
    described,
    named_moments,
    put_replica,
    saved_buffers,
    tied_names,
    torch_parts,
    whole_part,
)
from trainer.runtime.group import Group
from trainer.tasks.base import Task, loss_of
from trainer.tasks.lora import narrow_frozen_weights
from trainer.values import Batch, Foreign

SPLIT_STAGE = 3  # weights are sharded too


class Zero:
    """The engine holds this rank's shards of model and optimizer."""

    _clips = False
    """The trainer computes the norm of the gradients and clips them, as DeepSpeed does not."""

    def __init__(self, group: Group, config: TrainConfig, task: Task, out: Path) -> None:
        self.group, self.config, self.task, self.stage = group, config, task, ZERO_STAGES[config.strategy]
        self._holds_gradients = False
        self._clips = 0 < self.stage < SPLIT_STAGE and clips_fp16_alone()
        warning = package_warning(group.accelerator.name, config.strategy)
        if warning and group.rank.is_main:
            log_line(warning)
        settings = agreed_settings(group, config, out)
        deepspeed = load_deepspeed(group)
        _check(group, deepspeed, settings, config.deepspeed or "its configuration")
        split = self.stage == SPLIT_STAGE and build_fillable(task, config) is not None
        model = _build_split(group, config, task, settings) if split else build_whole(group, config, task)
        self.sizes: Mapping[str, int] = sizes_of(model)
        if self.stage > 0:
            refuse_frozen_weights(model, config.strategy)
            if not split:  # DeepSpeed converts what it sees, and while it splits, everything
                narrow_frozen_weights(model, config.precision)
        if config.compile:
            self._compile(model)
        self.buffers = Buffers(model)
        if self.stage > 0 and config.precision != "fp32":
            refuse_batch_norm(model, config)
            model.register_forward_pre_hook(_cast_inputs)
        # DeepSpeed 0.9.2 makes a step of the optimizer with gradients of zero at its start.
        rounds = self._clips or (self.stage > 0 and config.precision != "fp32")
        before = zero_state.copy_weights(model) if rounds and not split and group.rank.is_main else {}
        optimizer = cpu_adam(group, config, model) if config.offload_optimizer else None
        if any(task.param_group(name) for name, _ in model.named_parameters()):
            raise UserError.agreed(
                f"strategy={config.strategy}: task={config.task} has param_group(): use strategy=ddp or fsdp2"
            )
        optimizer = optimizer or make_optimizer(model, config.lr, config.optim)
        self.engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        self.unwrapped_model: torch.nn.Module = self.engine.module
        whole = self.stage != SPLIT_STAGE
        self.replicated: Sequence[torch.Tensor] = list(self.engine.module.parameters()) if whole else []
        if self._clips:
            self.engine.optimizer.optimizer.state.clear()
        if rounds:  # the engine made its fp32 weights from rounded ones, or changed them
            drawn = functools.partial(initial_values, task)
            zero_state.set_weights(self.engine, group, drawn if split else lambda name, _: before.pop(name))
        scaler: Any = getattr(self.engine.optimizer, "loss_scaler", None)
        if hasattr(scaler, "raise_error_at_min_scale"):
            scaler.raise_error_at_min_scale = False  # a plain Exception; the trainer counts skipped steps itself

    def _compile(self, model: torch.nn.Module) -> None:
        """Under ZeRO-3 the weights of a block are gathered all at once: hooks of the modules in it would cut its graph."""
        blocks, is_split = self.task.blocks(model), self.stage == SPLIT_STAGE
        if is_split and not blocks:
            raise UserError.agreed(
                f"compile=true strategy=zero3: task={self.config.task} names no blocks(); leave out compile=true"
            )
        for block in blocks if is_split else ():
            unite: Any = importlib.import_module("deepspeed.utils").set_z3_leaf_module
            unite(block, flag=True)
            block.register_forward_pre_hook(with_gradient)
        compile_blocks(model, blocks, self.task.ends(model), inside_hooks=is_split)

    def warm_up(self, batch: Batch) -> None:
        """Do nothing: the model alone fixes the order of the buckets."""

    def micro_batch(self, *, last: bool) -> ContextManager[None]:
        self.engine.set_gradient_accumulation_boundary(last)
        return contextlib.nullcontext()

    def forward(self, batch: Batch) -> torch.Tensor:
        return loss_of(self.task, self.engine, batch)

    def backward(self, loss: torch.Tensor) -> None:
        self._holds_gradients = True
        self.engine.backward(loss)  # divides by the accumulation itself

    def update(self, lr: float, loss: torch.Tensor, *, is_good: torch.Tensor) -> torch.Tensor:
        """Make DeepSpeed's step, for which the host waits for the device."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        norm = None
        if self.stage == 0:  # in fp32, for which the engine reports none
            norm = float(torch.nn.utils.clip_grad_norm_(self.engine.module.parameters(), float("inf")))
        if not bool(is_good):
            norm = math.inf
            if self.stage == 0:
                self._drop_gradients()
        elif norm is None:
            clipped = zero_state.clip_gradients(self.engine, self.config.optim.grad_clip) if self._clips else None
            self._step()
            # DeepSpeed 0.18 keeps an earlier norm if it has skipped the update.
            found = self.engine.get_global_grad_norm() if clipped is None else clipped
            norm = float(found) if self.engine.was_step_applied() else math.inf
        elif math.isfinite(norm):
            self._step()
        else:
            self._drop_gradients()
        self.buffers.broadcast(self.engine.module, self.group)
        return torch.full_like(loss, norm)

    def discard_gradients(self) -> None:
        """Make a step, since only that empties the engine's gradient buffers; a state that is loaded undoes the update."""
        if self._holds_gradients:
            self._step()

    def _drop_gradients(self) -> None:
        self.engine.zero_grad()
        self._holds_gradients = False

    def _step(self) -> None:
        self.engine.step()
        self._holds_gradients = False

    @contextlib.contextmanager
    def without_gradients(self) -> Iterator[Any]:
        with torch.no_grad():
            yield self.engine

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Any]:
        self.engine.eval()
        try:
            with self.without_gradients() as model:
                yield model
        finally:
            self.engine.train()

    def state(self) -> Dict[str, Any]:
        if self.stage == 0:
            module = self.engine.module
            return {"model": module.state_dict(), "moments": named_moments(module, self.engine.optimizer)}
        return zero_state.collect(self.engine, keep=self.group.rank.is_main)

    def local_state(self) -> LocalState:
        model = self.engine.module
        buffers = saved_buffers(model, self.group)
        if self.stage == 0:
            parts = [*torch_parts(model, self.engine.optimizer, whole_part), *buffers]
            steps, _ = described(named_moments(model, self.engine.optimizer))
            return LocalState(parts, steps, aliases=tied_names(model))
        parts, step = zero_state.local_parts(self.engine, self.group)
        steps = {} if step is None else dict.fromkeys(self.sizes, step)
        return LocalState([*parts, *buffers], steps, zero_state.scale(self.engine), tied_names(model))

    def parts_to_load(self, steps: Mapping[str, float], further: Mapping[str, Sequence[str]]) -> Sequence[Part]:
        model = self.engine.module
        if self.stage == 0:
            step_device = self.group.device if self.config.optim.fused else torch.device("cpu")
            allocate_moments(model, self.engine.optimizer, steps, further, step_device=step_device)
            return [*torch_parts(model, self.engine.optimizer, whole_part), *buffer_parts(model)]
        return [*zero_state.parts_to_load(self.engine, steps, self.group), *buffer_parts(model)]

    def put(self, weight: torch.Tensor, whole: Callable[[], torch.Tensor]) -> None:
        if hasattr(weight, "ds_id"):  # split by ZeRO-3
            _put_split(self.group, weight, whole)
        else:
            put_replica(self.group, weight, whole)

    def finish_load(self, scaler: Mapping[str, Any]) -> None:
        if self.stage > 0:
            zero_state.load_scale(self.engine, scaler)


def _build_split(group: Group, config: TrainConfig, task: Task, settings: Mapping[str, Any]) -> torch.nn.Module:
    """Shard each parameter when it is created, and initialise one at a time."""
    with importlib.import_module("deepspeed").zero.Init(config_dict_or_path=dict(settings)):
        model = build_plain(task, config)
    fill(task, model, functools.partial(_put_split, group))
    return model


def _put_split(group: Group, weight: Foreign, whole: Callable[[], torch.Tensor]) -> None:  # with DeepSpeed's fields
    with importlib.import_module("deepspeed").zero.GatheredParameters([weight], modifier_rank=0):
        if group.rank.is_main:
            weight.copy_(whole())


def refuse_frozen_weights(model: torch.nn.Module, strategy: str) -> None:
    """Raise UserError for a weight without a gradient: DeepSpeed keeps no fp32 slice of it, from which to save."""
    frozen = next((name for name, parameter in model.named_parameters() if not parameter.requires_grad), None)
    if frozen is not None:
        raise UserError.agreed(
            f"strategy={strategy} does not save weights with requires_grad=False, such as {frozen}: use strategy=ddp or fsdp2"
        )


def with_gradient(block: torch.nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """
    Have an input of which a gradient is wanted: when that is there, DeepSpeed reduces the gradients of the weights.

    It would do so before they are computed for a block that gets the data themselves.
    """
    if not torch.is_grad_enabled() or any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        return inputs
    wide = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    if not any(wide):
        raise UserError.agreed(
            f"compile=true strategy=zero3: block {type(block).__name__} gets no floating-point tensor, and DeepSpeed needs the gradient "
            "of one: leave out compile=true"
        )
    return tuple(value.detach().requires_grad_() if found else value for value, found in zip(inputs, wide))


def _cast_inputs(model: torch.nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Cast floating-point inputs, such as images, to the weights' precision: DeepSpeed casts the model only."""
    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs
    )


def load_deepspeed(group: Group) -> ModuleType:
    device = group.accelerator.name
    if not device.startswith("gcu"):  # the vendor's fork detects its own
        os.environ["DS_ACCELERATOR"] = device
    deepspeed = importlib.import_module("deepspeed")
    # A shared-memory collective, compiled at the first start and unused in training.
    getattr(deepspeed.ops, "__compatible_ops__", {})["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()  # uses the trainer's group
    return deepspeed


def agreed_settings(group: Group, config: TrainConfig, out: Path) -> Dict[str, Any]:
    """DeepSpeed's configuration, read by rank 0 for all ranks and kept in <out>/deepspeed.json."""
    text, problem = "", ""
    if group.rank.is_main:
        try:
            user_settings = read_relaxed_json(config.deepspeed) if config.deepspeed else {}
            text = strict_json(deepspeed_config(config, group.rank, user_settings))
            replace_text(out / "deepspeed.json", text)
            log_line(f"DeepSpeed's configuration: {out / 'deepspeed.json'}")
        except UserError as exc:
            problem = str(exc)
        except OSError as exc:
            problem = f"out={out}: cannot be written: {exc.strerror}"
    answer = json.loads(group.broadcast_bytes(json.dumps({"text": text, "problem": problem}).encode()))
    if answer["problem"]:
        raise UserError.agreed(answer["problem"])
    settings: Dict[str, Any] = json.loads(answer["text"])
    return settings


def _check(group: Group, deepspeed: ModuleType, settings: Mapping[str, Any], name: str) -> None:
    problem = ""
    device = importlib.import_module("deepspeed.accelerator").get_accelerator()
    for precision, supported in (("bf16", device.is_bf16_supported), ("fp16", device.is_fp16_supported)):
        if settings[precision]["enabled"] and not supported():
            problem = f"precision={precision}: DeepSpeed reports that this device ({device.device_name()}) lacks it"
    try:
        deepspeed.DeepSpeedConfig(dict(settings))
    except (ValueError, TypeError, KeyError, AssertionError) as exc:
        problem = f"DeepSpeed refuses {name}: {exc}"
    group.raise_if_any(problem)
