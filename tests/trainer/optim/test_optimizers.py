"""Optimizers and the average of the weights: what is saved and loaded, in one process, under DDP and FSDP2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds.checkpoints import Session, add_gradient, update
from tests.grounds.tied_task import Tied
from tests.grounds.trainings import world_of_one
from trainer.checkpoint.interop.export import export
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.config.config import OptimConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.optim.ema import Ema
from trainer.optim.optimizer import MuonAndAdamW, make_optimizer
from trainer.parallel import build_strategy
from trainer.parallel.base import Strategy
from trainer.parallel.ddp import Ddp
from trainer.parallel.fsdp import Fsdp2
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.safetensors import SafetensorsFile
from trainer.tasks.gpt import Gpt
from trainer.tensors import map_tensors

pytestmark = pytest.mark.trains

TINY = "model.layers=2 model.width=8 model.heads=1 model.context=4"
BATCHES = torch.arange(30).view(3, 2, 5)
Kind = Callable[..., Any]  # Ddp or Fsdp2
OPTIMIZERS = (
    OptimConfig(ema=0.5),
    OptimConfig(name="sgd"),
    OptimConfig(name="sgd", momentum=0.0),
    OptimConfig(name="sgd", momentum=0.8, nesterov=True, fused=True, ema=0.5),
    OptimConfig(name="muon"),
    OptimConfig(name="muon", fused=True, ema=0.5),
)


@pytest.fixture
def group() -> Iterator[Group]:
    """One launched rank."""
    yield initialise("cpu", 60.0, world_of_one())
    torch.distributed.destroy_process_group()


def state_of(strategy: Strategy) -> dict[str, torch.Tensor]:
    """Every tensor of the training state, by kind and name."""
    found = strategy.state()
    moments = {f"{key}/{name}": value for name, values in found["moments"].items() for key, value in values.items()}
    return map_tensors({**found["model"], **moments}, torch.clone)  # type: ignore[no-any-return]  # as given


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def step(strategy: Strategy, number: int, lr: float = 0.01) -> None:
    update(strategy, lr, add_gradient(strategy, BATCHES[number % len(BATCHES)]))


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_step_after_a_resume_equals_that_without_bit_for_bit(tmp_path: Path, optim: OptimConfig, form: str) -> None:
    first = Session.start(tmp_path, checkpoint=form, optim=optim)
    first.train_and_save(1, 2)
    second = Session.start(tmp_path, checkpoint=form, optim=optim)
    assert second.resume().step == 2
    assert_equal(state_of(second.strategy), state_of(first.strategy))
    first.train()
    second.train()
    assert_equal(state_of(second.strategy), state_of(first.strategy))


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("optim", OPTIMIZERS[:4])
def test_state_moves_between_ddp_and_fsdp2_bit_for_bit(
    tmp_path: Path, group: Group, optim: OptimConfig, form: str
) -> None:
    words = [*TINY.split(), "device=cpu", f"checkpoint={form}", f"optim.name={optim.name}", f"optim.ema={optim.ema}"]
    if optim.momentum is not None:
        words.append(f"optim.momentum={optim.momentum}")
    expected: dict[str, torch.Tensor] = {}
    count = 0
    for number, name in enumerate(("ddp", "fsdp2", "fsdp2", "ddp")):
        config = load_config(words=[*words, f"strategy={name}", f"seed={number}"])
        strategy = build_strategy(group, config, Gpt(config), tmp_path)
        checkpoints = Checkpoints(group, config, tmp_path, "text", may_shard=form == "sharded")
        assert checkpoints.resume(strategy).step == 2 * number
        if number:
            assert_equal(state_of(strategy), expected)
        step(strategy, number)
        step(strategy, number + 1)
        expected, count = state_of(strategy), len(strategy.sizes)
        checkpoints.save(TrainState(2 * number + 2, position=number), strategy)
    averaged = {name for name in expected if name.startswith("ema/")}
    assert len(averaged) == (count if optim.ema else 0)


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("before", [0.0, 0.5])
def test_average_can_be_begun_and_given_up_at_a_resume(tmp_path: Path, form: str, before: float) -> None:
    after = 0.5 - before
    Session.start(tmp_path, checkpoint=form, optim=OptimConfig(ema=before)).train_and_save(1)
    second = Session.start(tmp_path, checkpoint=form, optim=OptimConfig(ema=after))
    second.resume()
    assert not any(name.startswith("ema/") for name in state_of(second.strategy))
    second.train()
    assert any(name.startswith("ema/") for name in state_of(second.strategy)) == bool(after)


def test_resume_with_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    with pytest.raises(
        UserError, match=r'moments of another optimizer: optim\.name: "adamw" -> "sgd" \(saved -> now\): use'
    ):
        Session.start(tmp_path, optim=OptimConfig(name="sgd")).resume()


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_average_begins_after_a_first_step_that_was_skipped(name: str) -> None:
    """As with fp16, whose first loss scale is often too large."""
    task = Gpt(load_config(words=[*TINY.split(), f"optim.name={name}", "optim.ema=0.5"]))
    model = task.build_model()
    optimizer = make_optimizer(model, 0.01, task.config.optim, blocks=task.blocks(model))
    ema = Ema(optimizer, 0.5)
    for is_updated in (False, True, True):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if is_updated:
            optimizer.step()
        ema.update(torch.tensor(is_updated))
    assert all("ema" in optimizer.state[parameter] for parameter in model.parameters())


@pytest.mark.parametrize("kind", [Ddp, Fsdp2])
def test_average_is_that_of_the_weights_after_each_step_and_is_evaluated(group: Group, kind: Kind) -> None:
    config = load_config(words=[*TINY.split(), f"strategy={kind.__name__.lower()}", "optim.ema=0.75"])
    strategy = kind(group, config, Gpt(config))

    def weights() -> dict[str, torch.Tensor]:
        return map_tensors(strategy.state()["model"], torch.clone)  # type: ignore[no-any-return]  # as given

    expected: dict[str, torch.Tensor] = {}
    trained: dict[str, torch.Tensor] = {}
    for number in range(3):
        step(strategy, number)
        trained = weights()
        expected = {
            name: 0.75 * expected[name] + 0.25 * trained[name] if expected else trained[name] for name in trained
        }
    bad = torch.zeros((), dtype=torch.bool)
    strategy.update(0.01, add_gradient(strategy, BATCHES[0]), is_good=bad)
    state = state_of(strategy)
    torch.testing.assert_close({name: state[f"ema/{name}"] for name in expected}, expected)
    with strategy.evaluating() as model:
        found = float(strategy.task.loss(model, BATCHES[1]))
        assert_equal(weights(), {name: state[f"ema/{name}"] for name in trained})
    assert_equal(state_of(strategy), state)
    plain = Ddp(group, load_config(words=TINY.split()), Gpt(config))
    plain.unwrapped_model.load_state_dict(expected)
    with plain.evaluating() as model:
        assert found == pytest.approx(float(plain.task.loss(model, BATCHES[1])), rel=1e-6)
    step(strategy, 0)  # on the weights, not on their average
    assert math.isclose(float(add_gradient(strategy, BATCHES[1])), found, rel_tol=1e-7) is False


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("kind", [Ddp, Fsdp2])
def test_export_writes_the_average_under_all_names_by_default(
    tmp_path: Path, group: Group, form: str, kind: Kind
) -> None:
    words = ["task=tests.grounds.tied_task:Tied", f"strategy={kind.__name__.lower()}", "optim.ema=0.5"]
    config = load_config(words=[*words, f"checkpoint={form}"])
    strategy = kind(group, config, Tied(config))
    for _ in range(2):
        batch = torch.zeros(2, 7, dtype=torch.long)
        update(strategy, 0.01, add_gradient(strategy, batch))
    Checkpoints(group, config, tmp_path, "text", may_shard=form == "sharded").save(TrainState(2), strategy)
    state = state_of(strategy)
    for averaged in (True, False):
        target = tmp_path / f"{averaged}.safetensors"
        export(tmp_path / "step_2", target, averaged=averaged)
        file = SafetensorsFile(target)
        start = "ema/" if averaged else ""
        assert torch.equal(file.tensor("token.weight"), state[f"{start}token.weight"])
        assert torch.equal(file.tensor("head.weight"), state[f"{start}token.weight"])
    assert not torch.equal(state["ema/token.weight"], state["token.weight"])


def test_muon_updates_matrices_of_blocks_and_adamw_the_others() -> None:
    config = load_config(words=[*TINY.split(), "optim.name=muon"])
    strategy = Ddp(initialise("cpu", 60.0, {}), config, Gpt(config))
    step(strategy, 0)
    assert isinstance(strategy.optimizer, MuonAndAdamW)
    states = strategy.optimizer.state
    kinds = {name: set(states[parameter]) for name, parameter in strategy.unwrapped_model.named_parameters()}
    muon = {name for name, found in kinds.items() if found == {"momentum_buffer"}}
    assert {name for name, found in kinds.items() if found != {"step", "exp_avg", "exp_avg_sq"}} == muon
    shapes = {name: parameter.dim() for name, parameter in strategy.unwrapped_model.named_parameters()}
    assert muon == {name for name in shapes if name.startswith("blocks.") and shapes[name] == 2}
    assert 0 < len(muon) < len(kinds)


class Halved(Gpt):
    def param_group(self, name: str) -> dict[str, float]:
        return {"lr_factor": 0.5, "weight_decay": 0.0} if name.startswith("blocks.0.") else {}


def test_muon_takes_settings_of_parameters_and_saves_their_order(tmp_path: Path) -> None:
    config = load_config(words=[*TINY.split(), "optim.name=muon"])
    group = initialise("cpu", 60.0, {})
    first, second = (Ddp(group, config, Halved(config)) for _ in range(2))
    step(first, 0)
    Checkpoints(group, config, tmp_path, "text").save(TrainState(1), first)
    assert Checkpoints(group, config, tmp_path, "text").resume(second).step == 1
    step(first, 1)
    step(second, 1)
    assert_equal(state_of(second), state_of(first))
    rates = {
        name: group["lr"]
        for name, parameter in first.unwrapped_model.named_parameters()
        for group in first.optimizer.param_groups
        if any(parameter is member for member in group["params"])
    }
    assert {rate for name, rate in rates.items() if name.startswith("blocks.0.")} == {0.005}
    assert {rate for name, rate in rates.items() if not name.startswith("blocks.0.")} == {0.01}


def test_muon_needs_blocks_with_matrices() -> None:
    class Plain(Gpt):
        def blocks(self, model: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
            return ()

    config = load_config(words=[*TINY.split(), "optim.name=muon"])
    with pytest.raises(UserError, match=r"names no blocks\(\), or they have no matrices: use optim.name=adamw"):
        Ddp(initialise("cpu", 60.0, {}), config, Plain(config))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("optim.name=sgd strategy=zero2", "optim.name=sgd goes with strategy=ddp or fsdp2, not zero2"),
        (
            "optim.name=muon strategy=fsdp2",
            "optim.name=muon needs whole matrices: it goes with strategy=ddp, not fsdp2",
        ),
        ("optim.name=muon strategy=zero0", "it goes with strategy=ddp, not zero0"),
        ("optim.ema=0.999 strategy=zero3", "optim.ema=0.999 goes with strategy=ddp or fsdp2, not zero3"),
        ("optim.ema=1", "optim.ema=1: allowed: a number from 0 to below 1"),
        ("optim.name=sgd optim.momentum=1", "optim.momentum=1: allowed: a number from 0 to below 1"),
        ("optim.name=sgd optim.momentum=0 optim.nesterov=true", "optim.nesterov=true needs a momentum"),
    ],
)
def test_optimizer_that_cannot_train_is_refused_with_the_configuration(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(words=words.split())
