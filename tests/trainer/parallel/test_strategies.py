"""Strategies in one process: requirements, fp16, recomputation, the line about the batch."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.checkpoints import add_gradient, update
from trainer.announce import batch_arithmetic, computation
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.optim.clip import clip_gradients
from trainer.parallel import build_strategy
from trainer.parallel.buffers import Buffers
from trainer.parallel.ddp import Ddp
from trainer.parallel.deepspeed.cpu_adam import cpu_adam
from trainer.parallel.deepspeed.zero import Zero, refuse_frozen_weights, with_gradient
from trainer.parallel.fsdp import scattered
from trainer.parallel.requirements import unmet_requirement
from trainer.runtime.accelerators import NO_SCALER_T2X
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.rank import Rank
from trainer.tasks.gpt import Gpt

TINY = "model.layers=2 model.width=16 model.heads=2 model.context=8"
TOKENS = torch.arange(18).view(2, 9)


def _config(words: str = "") -> TrainConfig:
    return load_config(words=f"{TINY} {words}".split())


def _group(**attributes: object) -> Group:
    group = initialise("cpu", 60.0, {})
    launched = replace(group.rank, launched=bool(attributes.pop("launched", False)))
    return replace(group, rank=launched, accelerator=group.accelerator.changed(**attributes))


def _ddp(words: str = "") -> Ddp:
    config = _config(words)
    return Ddp(_group(), config, Gpt(config))


@pytest.mark.parametrize(
    ("words", "attributes", "message"),
    [
        ("precision=fp16", {"name": "gcu-t2x", "precisions": lambda: ("fp32", "bf16")}, "precision=fp16: gcu-t2x with"),
        (
            "precision=fp16",
            {"precisions": lambda: ("fp32", "bf16"), "no_fp16": NO_SCALER_T2X},
            "precision=fp16: the card has it, but torch_gcu's own GradScaler",
        ),
        ("sync_batchnorm=true", {}, "sync_batchnorm=true: torch's SyncBatchNorm does not run on cpu"),
        ("compile=true", {"name": "gcu-i3x"}, "compile=true on a GCU: its compiler was never tried"),
        ("strategy=zero3", {}, "strategy=zero3 needs a process group: start through orch, or torchrun"),
        ("strategy=fsdp2", {}, "strategy=fsdp2 needs a process group"),
        ("gradient_as_bucket_view=true", {"name": "gcu-t2x"}, "torch_gcu's DistributedDataParallel refuses it"),
    ],
)
def test_unmet_requirement_is_named_before_anything_is_built(
    words: str, attributes: dict[str, object], message: str
) -> None:
    config, group = _config(words), _group(**attributes)
    with pytest.raises(UserError) as caught:
        build_strategy(group, config, Gpt(config), out=None)  # type: ignore[arg-type]  # not reached
    assert message in str(caught.value)


@pytest.mark.parametrize("is_main", [True, False])
def test_ranks_scatter_a_parameter_in_its_own_type_whatever_was_saved(is_main: bool) -> None:
    shards = torch.zeros(3, 2, dtype=torch.bfloat16)
    mine = scattered(shards, lambda: torch.ones(3, 2), is_main=is_main)
    assert (mine.shape, mine.dtype) == (shards.shape, shards.dtype)


def test_fsdp2_needs_fully_shard_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.parallel.requirements.has_fully_shard", lambda: False)
    assert "strategy=fsdp2 needs torch >= 2.6" in unmet_requirement(_group(launched=True), _config("strategy=fsdp2"))


def test_muon_needs_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unmet_requirement(_group(), _config("optim.name=muon")) == ""
    monkeypatch.delattr("torch.optim.Muon")
    assert "optim.name=muon needs torch >= 2.9" in unmet_requirement(_group(), _config("optim.name=muon"))


def test_compiling_on_a_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "install g++, or name one in CXX" in unmet_requirement(_group(), _config("compile=true"))
    assert unmet_requirement(_group(), _config()) == ""


class _Adding(Gpt):
    """Its model creates a submodule in the forward pass, on the CPU."""

    def loss(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        getattr(model, "model", model).late = torch.nn.Linear(1, 1)
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("task", "warning"), [(Gpt, ""), (_Adding, "2 parameters are on the CPU although cuda was requested")]
)
def test_parameters_that_a_forward_pass_leaves_on_the_cpu_are_a_warning(
    capsys: pytest.CaptureFixture[str], task: type[Gpt], warning: str
) -> None:
    """The device is torch's `meta`, which runs every operation and computes nothing."""
    config, device = _config(), torch.device("meta")
    attributes = {"name": "cuda", "device": "meta", "data_parallel": lambda model, **_: model}
    strategy = Ddp(replace(_group(launched=True, **attributes), device=device), config, task(config))
    assert capsys.readouterr().err == ""
    strategy.warm_up(TOKENS.to(device))
    assert warning in capsys.readouterr().err


def test_adam_that_cannot_be_compiled_is_an_error_with_the_compilers_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lock that a killed compiler left is warned of before torch waits for it."""

    def fail(*_: object, **__: object) -> None:
        try:
            raise RuntimeError(
                "Error building extension: [1/3] c++ -MMD\nadam.h:9:10: fatal error: Python.h: no such file"
            )
        except RuntimeError as exc:
            raise RuntimeError("DeepSpeedCPUAdam requires the cpu_adam op, which failed to build/load.") from exc

    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setitem(sys.modules, "deepspeed.ops.adam", SimpleNamespace(DeepSpeedCPUAdam=fail))
    monkeypatch.setattr("trainer.parallel.deepspeed.cpu_adam.take_share_of_cpus", lambda *_: None)
    config = _config("strategy=zero1 offload_optimizer=true")
    with pytest.raises(UserError, match=r"g\+\+ >= 9 and ninja\): adam.h:9:10: fatal error: Python.h: no such file$"):
        cpu_adam(_group(), config, Gpt(config).build_model())
    assert f"WARNING: rank 0: {lock}: DeepSpeed's Adam is being compiled by another program" in capsys.readouterr().out


def test_recomputed_blocks_give_the_same_gradients_bit_for_bit() -> None:
    kept, dropped = _ddp(), _ddp("activation_checkpointing=true")
    for strategy in (kept, dropped):
        add_gradient(strategy, TOKENS)
    for parameter, recomputed in zip(kept.parameters, dropped.parameters, strict=True):
        assert parameter.grad is not None
        assert recomputed.grad is not None
        assert torch.equal(parameter.grad, recomputed.grad)


def test_fused_adam_equals_plain_adam() -> None:
    plain, fused = _ddp(), _ddp("optim.fused=true")
    for strategy in (plain, fused):
        update(strategy, 1e-2, add_gradient(strategy, TOKENS))
    for parameter, expected in zip(fused.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(parameter, expected)


def test_fp16_that_overflows_skips_the_step_and_halves_the_scale() -> None:
    strategy = _ddp("precision=fp16")
    before = [parameter.detach().clone() for parameter in strategy.parameters]
    for overflows in (True, False):
        loss = add_gradient(strategy, TOKENS)
        if overflows:
            assert strategy.parameters[0].grad is not None
            strategy.parameters[0].grad[0] = math.inf
        norm = update(strategy, 1e-2, loss)
        same = all(torch.equal(*pair) for pair in zip(before, strategy.parameters, strict=True))
        assert (math.isinf(norm), same) == (overflows, overflows)
    assert strategy.state()["scaler"]["scale"] == 2.0**15


def test_norm_under_fp16_is_that_of_the_gradient_without_its_scale() -> None:
    plain, scaled = (
        update(strategy, 1e-2, add_gradient(strategy, TOKENS)) for strategy in (_ddp(), _ddp("precision=fp16"))
    )
    assert scaled == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("words", ["optim.fused=false", "optim.fused=true"])
@pytest.mark.parametrize("is_good", [True, False])
def test_gradient_or_loss_that_is_not_finite_leaves_weights_and_moments_unchanged(words: str, *, is_good: bool) -> None:
    """A loss is not finite on this rank or on another one, where the gradient need not be."""
    strategy = _ddp(words)
    update(strategy, 1e-2, add_gradient(strategy, TOKENS))
    before = copy.deepcopy((strategy.model.state_dict(), strategy.optimizer.state_dict()["state"]))
    loss = add_gradient(strategy, TOKENS)
    if is_good:
        assert strategy.parameters[0].grad is not None
        strategy.parameters[0].grad[0] = math.nan
    norm = strategy.update(1e-2, loss, is_good=torch.tensor(is_good))
    assert bool(torch.isfinite(norm)) != is_good
    after = strategy.model.state_dict(), strategy.optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_step_that_deepspeed_skips_has_no_finite_norm() -> None:
    """DeepSpeed 0.18 returns the norm of an earlier step, at first 0.0; 0.19.8 returns inf."""
    strategy = Zero.__new__(Zero)  # without __init__, which would start DeepSpeed
    strategy.stage, strategy.group, strategy.buffers = 2, _group(), Buffers(torch.nn.Linear(1, 1))
    for is_applied, norm in ((False, math.inf), (True, 0.5)):
        strategy.engine = SimpleNamespace(
            optimizer=SimpleNamespace(param_groups=[]),
            module=None,
            step=lambda: None,
            get_global_grad_norm=lambda: 0.5,
            was_step_applied=lambda is_applied=is_applied: is_applied,
        )
        assert update(strategy, 1e-2, torch.zeros(())) == norm


@pytest.mark.parametrize(("nodes", "ranks"), [(2, "devices 8 x nodes 2"), (3, "ranks 16")])
def test_batch_is_printed_as_a_product(nodes: int, ranks: str) -> None:
    rank = replace(Rank.from_env({}), world_size=16, nodes=nodes)
    config = _config("micro_batch=1 accumulation=8")
    assert batch_arithmetic(config, rank) == f"batch 128 = micro_batch 1 x {ranks} x accumulation 8"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "fp32"),
        ("precision=bf16", "bf16 by autocast"),
        ("precision=bf16 strategy=zero0", "bf16 by autocast"),
        ("precision=fp16 strategy=zero2", "fp16 in all layers"),
        ("precision=bf16 strategy=fsdp2", "bf16 in all layers"),
        ("precision=bf16 fp8=true", "bf16 by autocast, linear layers of the blocks in fp8"),
    ],
)
def test_log_names_the_scope_of_a_16_bit_precision(words: str, text: str) -> None:
    assert computation(_config(words)) == text


@pytest.mark.parametrize("limit", ["0", "0.01", "100"])
def test_fused_adam_takes_clipped_gradients(limit: str) -> None:
    plain, fused = (_ddp(f"optim.grad_clip={limit} optim.fused={value}") for value in ("false", "true"))
    for _ in range(2):
        norms = [update(strategy, 1e-2, add_gradient(strategy, TOKENS)) for strategy in (plain, fused)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    found, expected = (strategy.optimizer.state_dict()["state"][0]["exp_avg_sq"] for strategy in (fused, plain))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("limit", [1e-3, 0.5, 1e3, math.inf])
def test_gradients_are_clipped_as_torch_does_it_bit_for_bit(limit: float) -> None:
    clipped, expected = _ddp().parameters, _ddp().parameters
    for parameters in (clipped, expected):
        torch.manual_seed(3)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
    assert clip_gradients(clipped, limit) == float(torch.nn.utils.clip_grad_norm_(expected, limit))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(clipped, expected, strict=True))  # type: ignore[arg-type]  # set above


def test_accumulated_halves_of_a_batch_give_its_gradient_and_loss() -> None:
    whole, halves = _ddp(), _ddp("accumulation=2")
    loss = add_gradient(whole, TOKENS)
    losses = [add_gradient(halves, TOKENS[:1], last=False), add_gradient(halves, TOKENS[1:])]
    torch.testing.assert_close((losses[0] + losses[1]) / 2, loss)
    for accumulated, expected in zip(halves.parameters, whole.parameters, strict=True):
        torch.testing.assert_close(accumulated.grad, expected.grad)


@pytest.mark.parametrize(("limit", "clipped"), [(0.01, True), (1000.0, False), (0.0, False)])
def test_optimizer_gets_the_gradient_clipped_to_grad_clip(limit: float, clipped: bool) -> None:
    """Adam's first mean is a fixed share of the gradient; 0 disables clipping."""
    strategy = _ddp(f"optim.grad_clip={limit}")
    norm = update(strategy, 1e-3, add_gradient(strategy, TOKENS))
    means = [state["exp_avg"] for state in strategy.optimizer.state.values()]
    given = float(torch.cat([mean.flatten() for mean in means]).norm()) / (1 - strategy.config.optim.betas[0])
    assert given == pytest.approx(limit if clipped else norm, rel=1e-4)
    assert norm > 0.01


def test_zero_refuses_weights_that_it_cannot_save() -> None:
    model = torch.nn.Linear(2, 2)
    refuse_frozen_weights(model, "zero2")
    model.bias.requires_grad_(False)
    message = "^strategy=zero2 does not save weights with requires_grad=False, such as bias: use strategy=ddp or fsdp2$"
    with pytest.raises(UserError, match=message):
        refuse_frozen_weights(model, "zero2")


def test_zero3_does_not_compile_a_model_without_blocks() -> None:
    task = SimpleNamespace(blocks=lambda _: [])
    zero: Any = SimpleNamespace(stage=3, config=_config("strategy=zero3"), task=task)
    with pytest.raises(
        UserError, match=r"^compile=true strategy=zero3: task=.*:Gpt names no blocks\(\); leave out comp"
    ):
        Zero._compile(zero, torch.nn.Linear(1, 1))  # its public way is a group with DeepSpeed


def test_block_of_zero3_gets_an_input_with_a_gradient() -> None:
    """DeepSpeed reduces the gradients of a block when the one of an input is there, and too early if there is none."""
    block, data, positions = torch.nn.Linear(2, 2), torch.ones(2, 2), torch.arange(2)
    given = with_gradient(block, (data, positions))
    assert [value.requires_grad for value in (*given, data)] == [True, False, False]
    assert with_gradient(block, given) is given
    with torch.no_grad():
        assert with_gradient(block, (data,))[0] is data
    with pytest.raises(UserError, match=r"^compile=true strategy=zero3: block Linear gets no floating-point tensor"):
        with_gradient(block, (positions,))
