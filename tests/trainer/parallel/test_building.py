"""A model is built on `meta` only if every tensor can be initialised later; any other model trains the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tests.grounds.checkpoints import add_gradient, update
from tests.grounds.tied_task import Model, Sentences, Tied
from tests.grounds.trainings import world_of_one
from trainer.checkpoint.load.whole import load_whole
from trainer.config.load import load_config
from trainer.parallel.building import build_fillable, build_whole
from trainer.parallel.ddp import Ddp
from trainer.parallel.fsdp import Fsdp2, units
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt
from trainer.tensors import map_tensors

CONFIG = load_config(words=["task=tests.grounds.tied_task:Tied", "device=cpu"])
BATCH = torch.stack([Sentences()[index] for index in range(4)])


@pytest.fixture
def group() -> Iterator[Group]:
    """One launched rank."""
    yield initialise("cpu", 60.0, world_of_one())
    torch.distributed.destroy_process_group()


def test_shared_weights_stay_shared_and_buffers_are_those_of_build_model() -> None:
    task: Any = Tied(CONFIG)
    model: Any = build_whole(initialise("cpu", 60.0, {}), CONFIG, task)
    assert model.head.weight is model.token.weight
    assert model.blocks[2].out.weight is model.blocks[0].out.weight
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), Model().buffers(), strict=True))
    expected = torch.empty_like(model.token.weight)
    task.initialise("token.weight", expected)
    assert torch.equal(model.token.weight, expected)


def _with_buffer(model: nn.Module) -> None:
    model.register_buffer("mask", torch.ones(2), persistent=False)


def _with_attribute(model: nn.Module) -> None:
    model.table = torch.ones(2)


def _with_shared_module(model: nn.Module) -> None:
    model.first_child = next(model.children())


def _with_shared_weight(model: Any) -> None:  # `head` and `token` are of the GPT
    model.head.weight = model.token.weight


@pytest.mark.parametrize("change", [_with_buffer, _with_attribute, _with_shared_module, _with_shared_weight])
def test_model_with_more_than_untied_weights_is_not_built_on_meta(
    change: Callable[[nn.Module], None],
) -> None:
    config = load_config()
    task: Any = Gpt(config)
    assert build_fillable(task, config) is not None
    build = task.build_model

    def changed() -> nn.Module:
        model: nn.Module = build()
        change(model)
        return model

    task.build_model = changed
    assert build_fillable(task, config) is None


def test_part_that_shares_a_weight_with_another_part_is_not_sharded_separately() -> None:
    model = Model()
    assert units(model, list(model.blocks), [[model.token], [model.head]]) == [[model.blocks[1]]]
    assert units(model, [], [[model.token, model.head]]) == [[model.token, model.head]]
    twice = nn.ModuleList([model.blocks[1], model.blocks[1]])
    assert units(twice, list(twice), []) == []


def groups_of(model: nn.Module) -> list[Any]:
    """FSDP2's groups of weights, one for each unit that has some."""
    modules: Any = [module for module in model.modules() if isinstance(module, FSDPModule)]
    groups = dict.fromkeys(module._get_fsdp_state()._fsdp_param_group for module in modules)  # not public
    return [group for group in groups if group]


def gathered_together(model: nn.Module) -> list[list[str]]:
    """The names of the weights of each unit."""
    names = {module: name for name, module in model.named_modules()}
    infos = [[weight._module_info for weight in group.fsdp_params] for group in groups_of(model)]
    return [[f"{names[info.module]}.{info.param_name}" for info in group] for group in infos]


def test_embeddings_blocks_and_head_are_gathered_separately(group: Group) -> None:
    config = load_config(words=["strategy=fsdp2", "model.layers=3", "model.width=16", "model.heads=2", "device=cpu"])
    model = Fsdp2(group, config, Gpt(config)).model
    assert [unit._reshard_after_forward for unit in groups_of(model)] == [True, True, True, True, False]
    first, *blocks, last = gathered_together(model)
    assert first == ["token.weight", "position.weight"]
    assert [{name[: len("blocks.0")] for name in block} for block in blocks] == [{f"blocks.{n}"} for n in range(3)]
    assert last == ["norm.weight", "norm.bias", "head.weight"]


def test_tied_weights_are_gathered_with_the_rest(group: Group) -> None:
    split = replace(CONFIG, strategy="fsdp2")
    block, rest = sorted(gathered_together(Fsdp2(group, split, Tied(split)).model), key=len)
    assert {name[: len("blocks.1")] for name in block} == {"blocks.1"}
    assert {"token.weight", "blocks.0.out.weight"} <= set(rest)


def losses(strategy: Any, steps: int) -> list[float]:  # Ddp or Fsdp2
    found = []
    for _ in range(steps):
        loss = add_gradient(strategy, BATCH)
        update(strategy, 0.05, loss)
        found.append(float(loss))
    return found


def test_shared_weights_train_under_fsdp2_as_under_ddp_and_resume_from_its_state(group: Group) -> None:
    expected = losses(Ddp(group, CONFIG, Tied(CONFIG)), 6)
    assert expected[-1] < 0.8 * expected[0]
    split = replace(CONFIG, strategy="fsdp2")
    first = Fsdp2(group, split, Tied(split))
    assert losses(first, 3) == pytest.approx(expected[:3], rel=1e-5)
    state = first.state()
    reseeded = replace(CONFIG, seed=1)
    alone = Ddp(group, reseeded, Tied(reseeded))
    load_whole(group, map_tensors(state, torch.clone), alone, "state")
    assert losses(alone, 3) == pytest.approx(expected[3:], rel=1e-5)
    second = Fsdp2(group, replace(split, seed=1), Tied(reseeded))
    load_whole(group, state, second, "state")
    assert losses(second, 1) == pytest.approx(expected[3:4], rel=1e-5)
    third = Fsdp2(group, split, Tied(split))
    load_whole(group, alone.state(), third, "state")  # six steps
    assert losses(third, 1) == pytest.approx(losses(alone, 1), rel=1e-5)


class Halved(Tied):
    """The output layers of the blocks have half of the rate and no decay."""

    def param_group(self, name: str) -> dict[str, float]:
        return {"lr_factor": 0.5, "weight_decay": 0.0} if ".out." in name else {}


def test_settings_of_parameters_train_and_resume_under_fsdp2_as_under_ddp(group: Group) -> None:
    split = replace(CONFIG, strategy="fsdp2")
    expected = losses(Ddp(group, CONFIG, Halved(CONFIG)), 4)
    assert expected != pytest.approx(losses(Ddp(group, CONFIG, Tied(CONFIG)), 4), rel=1e-3)
    first = Fsdp2(group, split, Halved(split))
    assert losses(first, 2) == pytest.approx(expected[:2], rel=1e-5)
    state = map_tensors(first.state(), torch.clone)
    second, third = Ddp(group, CONFIG, Halved(CONFIG)), Fsdp2(group, split, Halved(split))
    load_whole(group, map_tensors(state, torch.clone), second, "state")
    load_whole(group, state, third, "state")
    for resumed in (second, third):
        assert losses(resumed, 2) == pytest.approx(expected[2:], rel=1e-5)
