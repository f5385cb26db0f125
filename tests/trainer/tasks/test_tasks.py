"""A task is one class, of the user or the GPT of any size; each error in one is one message."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds.trainings import world_of_one
from tests.paths import ROOT
from trainer.checkpoint.load.whole import load_whole
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.config.presets import SIZES
from trainer.errors import UserError
from trainer.parallel.building import build_fillable, build_whole, sizes_of
from trainer.parallel.ddp import Ddp
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.seeds import determinism_warning, make_deterministic, report_nondeterminism
from trainer.tasks import Task
from trainer.tasks.base import loss_of, writes_no_files
from trainer.tasks.gpt import Gpt
from trainer.tasks.load import load_task

SEGMENTATION = "task=examples.segmentation.unet:Segmentation options.width=4 options.size=16 micro_batch=2"

GOOD = """
import torch
from trainer.tasks import Task

class Good(Task):
    def __init__(self, config, width=3, *, name="x"):
        super().__init__(config)
        self.width, self.name = width, name

    def build_model(self):
        return torch.nn.Linear(self.width, 1)

    def build_data(self, split):
        return None

    def loss(self, model, batch):
        return model(batch).mean()
"""


def _group_of_one() -> Group:
    return initialise("cpu", 60.0, {})


def _load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "Good", options: str = "") -> Task:
    """Load the task from a module with a name that no other test uses."""
    module = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_task(load_config(words=[f"task={module}:{name}", *options.split()]))


@pytest.mark.parametrize("size", SIZES)
def test_size_matches_its_name_and_the_documentation(size: str) -> None:
    config = load_config(words=[f"model.size={size}"])
    model = build_fillable(Gpt(config), config)
    assert model is not None
    sizes = sizes_of(model)
    count = sum(sizes.values())
    named = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert count == pytest.approx(named, rel=0.15)
    shape = config.model
    row = f"| `{size}` | {shape.layers} | {shape.width} | {shape.heads} | {shape.context} | {count:,} |"
    assert row in (ROOT / "docs" / "trainer.md").read_text("utf-8")


def test_model_keys_win_over_model_size() -> None:
    config = load_config(words=["model.layers=3", "model.size=7b", "model.vocabulary=50304"])
    assert (config.model.layers, config.model.width, config.model.vocabulary) == (3, 4096, 50304)
    model = build_fillable(Gpt(config), config)
    assert model is not None
    sizes = sizes_of(model)
    assert sizes["token.weight"] == sizes["head.weight"] == 50304 * 4096
    assert load_config().model == load_config(words=["model.size=1m"]).model


def test_initial_weights_depend_on_the_seed_only() -> None:
    models = []
    for seed in (1, 1, 2):
        torch.rand(seed)
        config = load_config(words=[f"seed={seed}"])
        models.append(build_whole(_group_of_one(), config, Gpt(config)).state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not torch.equal(models[0]["token.weight"], models[2]["token.weight"])
    assert not torch.equal(models[0]["blocks.0.mix.weight"], models[0]["blocks.1.mix.weight"])
    assert float(models[0]["blocks.0.feed.2.weight"].std()) == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert torch.equal(models[0]["norm.weight"], torch.ones(128))
    assert not models[0]["norm.bias"].any()


def test_options_are_the_arguments_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = _load(tmp_path, monkeypatch, GOOD, options="options.width=5 options.name=wide")
    assert (task.width, task.name) == (5, "wide")
    assert build_whole(_group_of_one(), task.config, task).weight.shape == (1, 5)


@pytest.mark.parametrize(
    ("text", "name", "options", "message"),
    [
        (GOOD, "Bad", "", "module {} has no Bad"),
        (GOOD, "torch", "", "torch is no class derived from trainer.tasks.Task"),
        (
            GOOD,
            "Good",
            "options.wdth=5",
            "got an unexpected keyword argument 'wdth'; it takes options.width, options.name",
        ),
        (GOOD.replace("def loss", "def lost"), "Good", "", "Good lacks loss()"),
        (GOOD.replace("        super().__init__(config)\n", ""), "Good", "", "has to call super().__init__(config)"),
        (
            GOOD.replace("= width, name", "= {}['a'], name"),
            "Good",
            "",
            "cannot be made: KeyError: 'a' ({path}, line 8)",
        ),
        ("import no_such_module", "X", "", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def", "X", "", "cannot be imported: SyntaxError: invalid syntax"),
        ("\n1 / 0", "X", "", "cannot be imported: ZeroDivisionError: division by zero ({path}, line 2)"),
    ],
)
def test_error_of_a_task_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, options: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        _load(tmp_path, monkeypatch, text, name, options)
    (path,) = tmp_path.glob("*.py")
    assert str(caught.value).startswith(f"task={path.stem}:{name}: ")
    assert message.format(path.stem, path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("module", "missing"), [("no_such", "no_such"), ("trainer.no.such", "trainer.no")])
def test_missing_module_is_named_with_the_folder_of_the_search(module: str, missing: str) -> None:
    with pytest.raises(UserError) as caught:
        load_task(load_config(words=[f"task={module}:X"]))
    assert f"there is no module {missing}, looked for from {Path.cwd()}" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kind"), [(torch.zeros(2, 3), r"a tensor of shape \(2, 3\)"), (1.5, "float"), (None, "NoneType")]
)
def test_loss_that_is_not_one_number_is_refused(given: object, kind: str) -> None:
    task: Any = Gpt(TrainConfig())
    task.loss = lambda *_: given
    with pytest.raises(UserError, match=rf"loss\(\) gave {kind}: it has to be a tensor of one number"):
        loss_of(task, None, None)


def test_activation_checkpointing_of_a_task_without_blocks_is_refused() -> None:
    config = load_config(words=["activation_checkpointing=true"])
    task: Any = Gpt(config)
    task.blocks = lambda _: ()
    with pytest.raises(UserError, match=r"^activation_checkpointing=true: task=.* names no blocks\(\)"):
        build_whole(_group_of_one(), config, task)


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_recomputed_blocks_of_a_users_model_get_the_same_gradients(strategy: str) -> None:
    """Also the first block, whose input needs no gradient: zero3's kind of checkpointing would leave it without one."""
    gradients = []
    for words in (SEGMENTATION, f"{SEGMENTATION} activation_checkpointing=true strategy={strategy}"):
        config = load_config(words=words.split())
        task = load_task(config)
        model = build_whole(_group_of_one(), config, task)
        samples = task.build_data("train")
        assert samples is not None
        loss_of(task, model, task.collate([samples[0], samples[1]])).backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert kept is not None
        assert recomputed is not None
        assert torch.equal(kept, recomputed)


def test_deterministic_run_refuses_nondeterministic_operations() -> None:
    config, env = load_config(words=["deterministic=true"]), {"A": "b"}
    make_deterministic(load_config(), env)
    assert env == {"A": "b"}
    assert not torch.are_deterministic_algorithms_enabled()
    before = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
    try:
        make_deterministic(config, env)
        assert env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        found = torch.zeros(4)
        with (
            pytest.raises(
                UserError, match=r"^deterministic=true: .*does not have a deterministic implementation.*leave"
            ),
            report_nondeterminism(config),
        ):
            found.put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
        with pytest.raises(
            UserError, match=r"CUBLAS_WORKSPACE_CONFIG=:0:0 is set: leave it out, or set one of :4096:8"
        ):
            make_deterministic(config, {"CUBLAS_WORKSPACE_CONFIG": ":0:0"})
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
    assert determinism_warning(config, "cuda") == ""
    assert determinism_warning(config, "gcu-t2x").startswith("WARNING: deterministic=true")


def test_warm_up_changes_neither_buffers_nor_random_numbers() -> None:
    """One launched rank, so with DistributedDataParallel, whose first pass must leave no trace."""
    group = initialise("cpu", 60.0, world_of_one())
    try:
        config = load_config(words=SEGMENTATION.split())
        task: Any = load_task(config)
        samples, loss = task.build_data("train"), task.loss
        task.loss = lambda model, batch: loss(model, batch) * torch.rand(())  # random, like a dropout
        strategy = Ddp(group, config, task)
        before = {name: tensor.clone() for name, tensor in strategy.unwrapped_model.state_dict().items()}
        numbers = torch.get_rng_state()
        strategy.warm_up(task.collate([samples[0], samples[1]]))
        assert all(torch.equal(before[name], tensor) for name, tensor in strategy.unwrapped_model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), numbers)
    finally:
        torch.distributed.destroy_process_group()


class Pictures(Task):
    """A convolution and BatchNorm on one random picture."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))

    def build_data(self, split: str) -> None:
        raise NotImplementedError

    def loss(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean()
        return loss

    def param_group(self, name: str) -> dict[str, float]:
        return {"lr_factor": 0.0} if name.startswith("0.") else {}


def _pictures(*words: str) -> Ddp:
    config = load_config(words=["optim.weight_decay=0", *words])
    return Ddp(initialise("cpu", 60.0, {}), config, Pictures(config))


def _step(strategy: Ddp) -> torch.Tensor:
    batch = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8) / 100
    loss = strategy.forward(batch)
    strategy.backward(loss)
    strategy.update(0.1, loss, is_good=torch.ones((), dtype=torch.bool))
    return loss.detach()


def test_channels_last_changes_the_layout_of_weights_and_not_the_numbers() -> None:
    plain, changed = _pictures(), _pictures("channels_last=true")
    assert [next(found.parameters()).is_contiguous() for found in (plain.model, changed.model)] == [True, False]
    torch.testing.assert_close(_step(changed), _step(plain))


def test_sync_batchnorm_replaces_batchnorm() -> None:
    assert isinstance(_pictures("sync_batchnorm=true").model[1], torch.nn.SyncBatchNorm)


def test_parameters_with_other_settings_are_stepped_and_resumed_by_them() -> None:
    """The rate of the convolution is 0; a file numbers its parameters, in an order that it names."""
    first, second = _pictures(), _pictures()
    before = [parameter.detach().clone() for parameter in first.model.parameters()]
    _step(first)
    changed = [not torch.equal(old, new) for old, new in zip(before, first.model.parameters(), strict=True)]
    assert changed == [False, False, True, True]
    state = copy.deepcopy(first.state())
    load_whole(second.group, state, second, "state")
    assert torch.equal(_step(second), _step(first))
    for mine, resumed in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, resumed)
        assert torch.equal(first.optimizer.state[mine]["exp_avg"], second.optimizer.state[resumed]["exp_avg"])


@pytest.mark.parametrize(
    ("text", "is_declared"),
    [
        (GOOD, False),
        (GOOD.replace("    def __init__", "    writes_no_files = True\n\n    def __init__"), True),
        ("from trainer.tasks.gpt import Gpt\nclass Good(Gpt):\n    pass\n", False),
    ],
)
def test_code_of_the_user_is_taken_to_write_files_unless_it_declares_that_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, is_declared: bool
) -> None:
    assert writes_no_files(_load(tmp_path, monkeypatch, text)) is is_declared
    assert writes_no_files(Gpt(TrainConfig()))
