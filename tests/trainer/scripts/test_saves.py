"""The saves of a script are reported once they are complete, with the step that they have, by the rank that has written them."""

from __future__ import annotations

import atexit
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_of_all_ranks

from trainer.scripts import devices, progress, saves
from trainer.scripts.progress import StepCount, step_count


class Script:
    """A rank of a run, which has imported torch."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, attempt: int = 1) -> None:
        self.path = folder / f"attempt-{attempt}" / "n0" / "progress" / "0.json"
        variables = {"ORCH_RUN_DIR": str(folder), "ORCH_NODE": "n0", "ORCH_ATTEMPT": str(attempt)}
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **variables}.items():
            monkeypatch.setenv(name, value)
        step_count.cache_clear()
        saves.saves.cache_clear()
        found = saves.saves()
        assert found is not None
        self.count: StepCount = found.count
        self.torch = SimpleNamespace(save=torch.save, load=torch.load)
        saves.watch_files(self.torch)
        self.optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.count(self.optimizer, (), {})
        atexit.unregister(self.count.finish)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text("utf-8"))
        return found


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Script]]:
    """Begin an attempt of a script."""
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.chdir(tmp_path)
    yield lambda attempt: Script(tmp_path / "run", monkeypatch, attempt)
    step_count.cache_clear()
    saves.saves.cache_clear()


def test_file_that_torch_saves_is_reported_after_it_is_complete(begin: Callable[[int], Script]) -> None:
    script = begin(1)
    script.steps(3)
    reports = []

    class Noisy:
        def __reduce__(self) -> tuple[object, ...]:
            reports.append((script.report()["phase"], script.report()["saved"]))
            return (int, ())

    script.torch.save(Noisy(), "checkpoint.pt")
    assert reports[-1] == ("save", None)
    assert script.report().items() >= {"step": 3, "phase": "step", "saved": 3}.items()
    script.steps(2)
    with Path("other.pt").open("wb") as file:
        script.torch.save({}, file)
    assert script.report()["saved"] == 5


def test_buffer_failed_save_and_file_before_the_first_step_are_no_saves(begin: Callable[[int], Script]) -> None:
    script = begin(1)
    script.torch.save({}, "data.pt")
    script.steps(3)
    script.torch.save({}, io.BytesIO())
    with pytest.raises(RuntimeError):
        script.torch.save({}, "no/such/folder.pt")
    assert script.report().items() >= {"saved": None, "phase": "step"}.items()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoint_of_all_ranks_is_saved_once_its_description_is_written(
    begin: Callable[[int], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = begin(1)
    base: Any = FileSystemWriter.__mro__[1]
    for name in ("write_data", "finish"):
        monkeypatch.setattr(base, name, getattr(base, name))
    saves.watch_distributed_checkpoint(sys.modules[base.__module__])
    monkeypatch.setattr(torch, "save", script.torch.save)
    script.steps(4)
    watched, reports = base.finish, []

    def finish(*words: Any, **options: Any) -> None:
        reports.append(script.report()["saved"])
        watched(*words, **options)

    monkeypatch.setattr(base, "finish", finish)
    save_of_all_ranks({"weight": torch.ones(4)}, checkpoint_id="checkpoint", no_dist=True)
    assert reports == [None]
    assert script.report()["saved"] == 4


def test_plain_script_continues_the_steps_of_the_file_that_it_loads(
    begin: Callable[[int], Script], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written beside it and renamed, as many do. The optimizer's state counts no steps, and only some ranks may load."""
    script = begin(1)
    script.steps(10)
    script.torch.save({}, "new")
    Path("new").replace("checkpoint.pt")
    script = begin(2)
    script.torch.load("checkpoint.pt")
    script.steps(5)
    script.torch.save({}, "checkpoint.pt")
    assert script.report().items() >= {"step": 5, "saved": 15}.items()
    assert capsys.readouterr().err == ""
    script = begin(3)
    script.torch.load("checkpoint.pt")
    script.steps(2)
    script.torch.save({}, "checkpoint.pt")
    assert script.report()["saved"] == 17


def test_attempt_that_does_not_resume_is_warned_of_with_what_is_certain(
    begin: Callable[[int], Script], capsys: pytest.CaptureFixture[str]
) -> None:
    script = begin(1)
    script.steps(10)
    script.torch.save({}, "checkpoint.pt")
    script = begin(2)
    script.steps(1)
    warning = capsys.readouterr().err
    assert warning.startswith("WARNING: attempt 2 makes its first step without having loaded (torch.load) a file that")
    saves.warn_if_not_resumed(script.count, 0, "--resume")
    text = "WARNING: attempt 2 begins at step 0, although step 10 was saved: the program does not resume; it needs --resume\n"
    assert capsys.readouterr().err == text
    saves.warn_if_not_resumed(script.count, 10, "--resume")
    assert capsys.readouterr().err == ""


def test_evaluation_with_a_save_in_it_is_reported_as_both(begin: Callable[[int], Script]) -> None:
    script = begin(1)
    script.steps(2)
    found = saves.saves()
    assert found is not None
    phases = []
    with script.count.phase("eval"):
        phases.append(script.report()["phase"])
        with found.save():
            phases.append(script.report()["phase"])
            script.torch.save({}, "part.pt")
        phases.append(script.report()["phase"])
    assert [*phases, script.report()["phase"]] == ["eval", "save", "eval", "step"]
    assert script.report()["saved"] == 2


def test_rank_that_writes_nothing_has_saved_nothing(begin: Callable[[int], Script]) -> None:
    script = begin(1)
    script.steps(2)

    class Trainer:
        args = SimpleNamespace(should_save=False, save_on_each_node=True)

        def _save_checkpoint(self) -> None:
            pass

    saves.watch_trainer(SimpleNamespace(Trainer=Trainer))
    Trainer()._save_checkpoint()
    assert script.report()["saved"] is None
    Trainer.args = SimpleNamespace(should_save=True, save_on_each_node=True)
    Trainer()._save_checkpoint()
    assert script.report()["saved"] == 2


@pytest.mark.parametrize(
    ("nodes", "shared", "folder", "is_warned"),
    [
        ("2", False, "run/code/out", True),
        ("1", False, "run/code/out", False),
        ("2", True, "run/code/out", False),
        ("2", False, "out", False),
    ],
)
def test_save_in_the_runs_folder_of_one_node_is_warned_of_once(
    begin: Callable[[int], Script],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    nodes: str,
    shared: bool,
    folder: str,
    is_warned: bool,
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", nodes)
    monkeypatch.delenv("ORCH_SHARED_DIR", raising=False)
    if shared:
        monkeypatch.setenv("ORCH_SHARED_DIR", "shared")
    devices.warn.cache_clear()
    begin(1)
    found = saves.saves()
    assert found is not None
    for _ in range(2):
        found.warn_of_unshared(folder, "add --save_on_each_node")
    text = "WARNING: run/code/out is saved on n0 alone, as the nodes share no workdir: ranks on other nodes cannot resume from it; add --save"
    assert capsys.readouterr().err.count(text) == is_warned


@pytest.mark.parametrize(("elsewhere", "warnings"), [(False, 1), (True, 0)])
def test_second_save_of_rank_0_is_warned_of_if_no_other_node_saves(
    begin: Callable[[int], Script],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    elsewhere: bool,
    warnings: int,
) -> None:
    """By torch.save, to a relative path of nodes that share no folder."""
    store = HashStore()
    monkeypatch.setattr(saves, "_store", lambda: store)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.delenv("ORCH_SHARED_DIR", raising=False)
    devices.warn.cache_clear()
    script = begin(1)
    script.steps(1)
    if elsewhere:
        store.set(saves.SAVED_ELSEWHERE, "n1")
    Path("run/code").mkdir()
    script.torch.save({}, "run/code/a.pt")
    assert capsys.readouterr().err == ""
    for _ in range(3):
        script.torch.save({}, "run/code/a.pt")
    assert (
        capsys.readouterr().err.count("run/code/a.pt is saved on n0 alone, as the nodes share no workdir") == warnings
    )


def test_attempt_compares_what_was_loaded_after_the_second_step(
    begin: Callable[[int], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = begin(1)
    script.steps(5)
    script.torch.save({}, "a.pt")
    script = begin(2)
    script.torch.load("a.pt")
    found, calls = saves.saves(), []
    assert found is not None
    assert (found.loads.files, found.loads.resumed_from) == (1, str(Path("a.pt").resolve()))
    monkeypatch.setattr(found.loads, "publish", lambda: calls.append("publish"))
    monkeypatch.setattr(found.loads, "compare", lambda: calls.append("compare"))
    script.steps(1)
    assert calls == ["publish"]
    script.steps(3)
    assert calls == ["publish", "compare"]


@pytest.mark.parametrize(("of_main", "code"), [("10", 93), ("0", None), (None, None)])
def test_rank_that_begins_at_another_step_than_rank_0_ends_after_its_first_step(
    begin: Callable[[int], Script],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    of_main: str | None,
    code: int | None,
) -> None:
    """Nodes without a shared folder, where rank 0 alone has saved. Without the key of rank 0, which may not train, nothing is known."""
    store = HashStore()
    monkeypatch.setattr(saves, "_store", lambda: store)
    script = begin(2)
    found = saves.saves()
    assert found is not None
    monkeypatch.setattr(found, "_key", lambda rank: "main" if rank == 0 and found.unchecked_begin is None else "own")
    found.begin_training(0)
    if of_main is not None:
        store.set("main", of_main)
    script.steps(1)
    if code is None:
        found.require_same_begin()
        assert capsys.readouterr().err == ""
    else:
        with pytest.raises(SystemExit) as exit_:
            found.require_same_begin()
        assert exit_.value.code == code
        error = "error: rank 0 on n0 began at step 0, and rank 0 at step 10: their checkpoints differ, as each node reads files that it has alone;"
        assert error in capsys.readouterr().err
    found.require_same_begin()  # the others steps are not compared


def test_progress_of_the_scripts_own_is_left_alone(begin: Callable[[int], Script]) -> None:
    script = begin(1)
    script.steps(2)
    script.path.write_text('{"step": 7}')
    script.torch.save({}, "checkpoint.pt")
    assert script.report() == {"step": 7}
    assert progress.SOURCE not in script.path.read_text()


@pytest.mark.parametrize(
    ("logged", "loss"),
    [
        ({"loss": 2.5, "learning_rate": 0.1}, 2.5),
        ({"grad_norm": 1.0, "train/loss_step": torch.tensor(1.5)}, 1.5),
        ({"val_loss": 0.5}, None),
        ({"eval_loss": 0.5, "train_loss": 0.25}, 0.25),
        ({"loss": "low"}, None),
        ({"loss": float("nan")}, None),
        ({"floss": 3.0}, None),
        (None, None),
    ],
)
def test_loss_of_the_training_among_logged_values_is_reported(
    begin: Callable[[int], Script], logged: dict[str, object] | None, loss: float | None
) -> None:
    """As Hugging Face's Trainer logs them."""
    script = begin(1)

    class CallbackHandler:
        def on_log(self, args: object, state: object, control: object, logs: object) -> None:
            pass

    saves.follow_trainer(SimpleNamespace(CallbackHandler=CallbackHandler))
    script.steps(1)
    CallbackHandler().on_log(None, None, None, logged)
    script.count.due_s = 0.0
    script.steps(1)
    assert script.report().get("loss") == loss
