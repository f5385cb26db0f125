"""The optimizer steps of a script are its progress, but no saved state to resume from; its end is the interpreter's."""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.node.batch.history import Attempt
from tests.grounds.gcu import try_each
from trainer.runtime.accelerators import Accelerator, choose
from trainer.runtime.rank import Rank
from trainer.scripts import devices, progress
from trainer.scripts.progress import EVERY_S, StepCount, count_steps, step_count


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _env(tmp_path: Path) -> dict[str, str]:
    rank_env = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    return {**rank_env, "ORCH_RUN_DIR": str(tmp_path), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}


def _file(tmp_path: Path) -> Path:
    return tmp_path / "attempt-1" / "n0" / "progress" / "1.json"


def _read(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_file(tmp_path).read_text())
    return found


@pytest.fixture(autouse=True)
def of_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The counter of the process is that of one test, and the exit is not watched after it."""
    monkeypatch.setattr(sys, "exit", sys.exit)
    step_count.cache_clear()
    yield
    step_count.cache_clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def count(tmp_path: Path, clock: Clock) -> StepCount:
    return StepCount(Rank.from_env(_env(tmp_path)), _file(tmp_path), clock)


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)


def test_first_step_is_written_at_once_and_later_ones_once_per_second(
    tmp_path: Path, count: StepCount, clock: Clock
) -> None:
    optimizer = _optimizer()
    for _ in range(3):
        count(optimizer, (), {})
    assert _read(tmp_path).items() >= {"step": 1, "phase": "step"}.items()
    clock.now_s += EVERY_S
    count(optimizer, (), {})
    assert _read(tmp_path)["step"] == 4
    count(optimizer, (), {})
    atexit.unregister(count.finish)
    count.finish()
    assert _read(tmp_path).items() >= {"step": 5, "phase": "done"}.items()


@pytest.mark.parametrize(
    ("status", "exception", "phase"),
    [
        (None, None, "done"),
        (0, None, "done"),
        (3, None, "step"),
        ("what is wrong", None, "step"),
        (None, RuntimeError("3"), "step"),
    ],
)
def test_script_is_done_at_its_exit_unless_it_exits_with_an_error(
    tmp_path: Path,
    count: StepCount,
    monkeypatch: pytest.MonkeyPatch,
    status: object,
    exception: Exception | None,
    phase: str,
) -> None:
    count(_optimizer(), (), {})
    if status is not None:
        with pytest.raises(SystemExit):
            sys.exit(status)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "last_value", exception, raising=False)
    atexit.unregister(count.finish)
    count.finish()
    assert _read(tmp_path)["phase"] == phase


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_rank_that_its_node_has_started_has_the_number_of_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    numbers = {f"{prefix}RANK": "3", f"{prefix}LOCAL_RANK": "3", f"{prefix}SIZE": "8"}
    for name, value in {**numbers, "ORCH_RUN_DIR": str(tmp_path), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}.items():
        monkeypatch.setenv(name, value)
    count = step_count()
    assert count is not None
    assert (count.path.name, count.progress.rank.local_rank) == ("3.json", 3)


@pytest.mark.parametrize(("launched", "group", "number"), [(False, [3, 4], 3), (False, None, 0), (True, [3, 4], 1)])
def test_process_that_no_launcher_has_numbered_has_the_number_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, launched: bool, group: list[int] | None, number: int
) -> None:
    """As of torch.multiprocessing.spawn, whose processes all had the file of rank 0."""
    env = {name: value for name, value in _env(tmp_path).items() if launched or name not in ("RANK", "WORLD_SIZE")}
    rank = Rank.from_env(env)
    monkeypatch.setattr(progress, "group_of", lambda _: group)
    count = StepCount(rank, _file(tmp_path).with_name(f"{rank.global_rank}.json"))
    count(_optimizer(), (), {})
    atexit.unregister(count.finish)
    [file] = _file(tmp_path).parent.iterdir()
    assert file.name == f"{number}.json"
    assert count.progress.rank.global_rank == number


@pytest.mark.parametrize("makes_state_by_a_step", [False, True])
def test_steps_of_a_loaded_state_are_counted(
    tmp_path: Path, count: StepCount, clock: Clock, *, makes_state_by_a_step: bool
) -> None:
    """Adam's state counts them, and is equal on all ranks."""
    first = torch.optim.Adam([torch.ones(1, requires_grad=True)])
    first.param_groups[0]["params"][0].grad = torch.ones(1)
    for _ in range(12):
        first.step()
    second = torch.optim.Adam([torch.ones(1, requires_grad=True)])
    second.param_groups[0]["params"][0].grad = torch.ones(1)
    if makes_state_by_a_step:  # torch.distributed.checkpoint.state_dict does, before it loads a state
        second.step()
        count(second, (), {})
        clock.now_s += EVERY_S
    second.load_state_dict(first.state_dict())
    second.step()
    count(second, (), {})
    assert _read(tmp_path)["step"] == 13


def test_step_of_a_framework_replaces_the_count_of_optimizers(tmp_path: Path, count: StepCount, clock: Clock) -> None:
    """ZeRO-3 makes several steps of optimizers for one of the program's; the program may have resumed."""
    optimizer = _optimizer()
    count.follow(40, 100)
    steps = []
    for step in range(41, 44):
        for _ in range(2):
            clock.now_s += EVERY_S
            count(optimizer, (), {})
            steps.append(_read(tmp_path)["step"])
        count.follow(step, 100)
    assert steps == [41, 41, 42, 42, 43, 43]
    assert _read(tmp_path)["steps"] == 100


def test_rank_is_not_done_once_another_process_of_it_begins(
    tmp_path: Path, count: StepCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(_optimizer(), (), {})
    atexit.unregister(count.finish)
    count.finish()
    for name, value in _env(tmp_path).items():
        monkeypatch.setenv(name, value)
    count_steps(SimpleNamespace(Optimizer=type("Optimizer", (), {})))
    assert _read(tmp_path).items() >= {"step": 1, "phase": "init"}.items()


def test_two_alternating_optimizers_count_as_one(tmp_path: Path, count: StepCount, clock: Clock) -> None:
    generator, critic = _optimizer(), _optimizer()
    for _ in range(5):
        clock.now_s += EVERY_S
        count(generator, (), {})
        count(critic, (), {})
    assert _read(tmp_path)["step"] == 5


def test_counted_steps_do_not_count_as_saved(tmp_path: Path, count: StepCount) -> None:
    count(_optimizer(), (), {})
    assert Attempt(str(tmp_path / "attempt-1")).saved is None


@pytest.mark.parametrize("theirs", ['{"step": 7, "saved": 5, "phase": "step", "time": 1.0}', "not JSON", "[]"])
def test_progress_that_the_script_writes_itself_is_not_overwritten(
    tmp_path: Path, count: StepCount, clock: Clock, theirs: str
) -> None:
    optimizer = _optimizer()
    count(optimizer, (), {})
    _file(tmp_path).write_text(theirs)
    clock.now_s += EVERY_S
    count(optimizer, (), {})
    count.finish()
    assert _file(tmp_path).read_text() == theirs


def test_next_process_of_the_same_rank_continues_the_count_in_its_file(
    tmp_path: Path, count: StepCount, clock: Clock
) -> None:
    count(_optimizer(), (), {})
    second, optimizer = StepCount(count.progress.rank, count.path, clock), _optimizer()
    second(optimizer, (), {})
    clock.now_s += EVERY_S
    second(optimizer, (), {})
    assert _read(tmp_path)["step"] == 2


@pytest.fixture
def rank_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _env(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("rank_variables")
def test_every_optimizer_of_torch_is_counted(tmp_path: Path) -> None:
    handles: list[Any] = []

    def register(name: str) -> Callable[[Any], None]:
        function = getattr(importlib.import_module("torch.optim.optimizer"), name)
        return lambda hook: handles.append(function(hook))

    names = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
    count_steps(SimpleNamespace(**{name: register(name) for name in names}))
    try:
        optimizer = _optimizer()
        for _ in range(2):  # before the first step, the counter knows no accelerator
            optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert _read(tmp_path)["step"] == 1


@pytest.mark.usefixtures("rank_variables")
def test_steps_of_a_torch_without_hooks_are_counted_once_each_and_keep_their_results(tmp_path: Path) -> None:
    class Optimizer:
        param_groups: tuple[dict[str, Any], ...] = ()

    class Plain(Optimizer):
        def step(self, closure: Any = None) -> Any:
            return closure

    class Derived(Plain):
        pass

    count_steps(SimpleNamespace(Optimizer=Optimizer))
    base, optimizer = Plain(), Derived()
    assert [base.step(closure=3), optimizer.step(4)] == [3, 4]
    hooks = [cell.cell_contents for cell in Plain.step.__closure__ or ()]
    (counter,) = (hook for hook in hooks if isinstance(hook, StepCount))
    assert sorted(counter.steps.values()) == [1, 1]
    assert _read(tmp_path)["step"] == 1


@pytest.mark.usefixtures("rank_variables")
@pytest.mark.parametrize(("name", "value"), [("ORCH_RUN_DIR", ""), ("RANK", "x"), ("RANK", "9")])
def test_process_that_is_no_rank_of_a_run_counts_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    count_steps(SimpleNamespace(register_optimizer_step_post_hook=pytest.fail, Optimizer=object))


ON_A_CARD = """
os.environ.update(RANK='0', LOCAL_RANK='0', WORLD_SIZE='1', ORCH_RUN_DIR={folder!r}, ORCH_NODE='n0', ORCH_ATTEMPT='1')
gcu.set_device(0); join()
import trainer.scripts.progress as progress, torch.optim.optimizer as module
progress.count_steps(module)
torch.optim.SGD(with_gradients(CARD).parameters(), lr=0.1).step()
raise Warning(open({folder!r} + '/attempt-1/n0/progress/0.json').read())
"""


@pytest.mark.processes
def test_group_of_a_card_is_reported_with_its_backend_and_device(tmp_path: Path) -> None:
    """The group of a T20 is not that of torch.distributed."""
    folders = {generation: str(tmp_path / generation) for generation in ("t20", "s60")}
    answers = try_each([(generation, ON_A_CARD.format(folder=folder)) for generation, folder in folders.items()])
    ready = [json.loads(answer.removeprefix("Warning: "))["ready"] for answer in answers]
    assert ready == [f"1/1 ranks ready, backend eccl, device {device}" for device in ("xla", "gcu")]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A card that is visible to the process, which is local rank 0."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    devices.warn.cache_clear()
    found = choose("cpu", torch).changed(name="cuda", device="cuda:{n}", peak_memory=lambda: 0)
    monkeypatch.setattr(progress, "accelerator_of_script", lambda: found)
    return found


@pytest.mark.usefixtures("card")
def test_steps_on_the_cpu_beside_an_idle_card_are_warned_of_once(
    count: StepCount, capsys: pytest.CaptureFixture[str]
) -> None:
    for optimizer in (_optimizer(), _optimizer()):
        count(optimizer, (), {})
    warning = capsys.readouterr().err
    assert warning.count("WARNING") == warning.count("on the CPU although cuda:0 is here") == 1
    assert "move the model to 'cuda:0'" in warning


def test_no_warning_if_the_card_is_used_or_another_rank_warns(
    monkeypatch: pytest.MonkeyPatch, card: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """With DeepSpeed's offload the optimizer's tensors are on the CPU, and the model is not."""
    on_cpu, on_meta = _optimizer().param_groups[0]["params"], [torch.ones(1, device="meta")]
    devices.warn_of_idle_cards(card.changed(peak_memory=lambda: 4096), on_cpu)
    devices.warn_of_idle_cards(card, on_meta)
    devices.warn_of_idle_cards(choose("cpu", torch), on_cpu)
    monkeypatch.setenv("LOCAL_RANK", "1")
    devices.warn_of_idle_cards(card, on_cpu)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rank", "warned"), [("0", True), ("1", False)])
def test_card_that_the_script_does_not_use_is_warned_of_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: str, warned: bool
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(devices, "GCU_FILES", f"{tmp_path}/gcu*")
    (tmp_path / "gcu0").touch()
    assert devices.accelerator_of_script().name == "cpu"
    warning = f"WARNING: this node has {tmp_path}/gcu0, but the script has not imported torch_gcu; training on the CPU"
    assert (warning in capsys.readouterr().err) is warned
