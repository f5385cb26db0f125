"""`python -m trainer.checkpoint`: list, verify and export, for people and other programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.grounds.checkpoints import DAMAGES, Session, flip
from tests.paths import ROOT
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.manager import TrainState


@pytest.fixture
def out(tmp_path: Path) -> Path:
    Session.start(tmp_path / "out").train_and_save(1, 2)
    return tmp_path / "out"


def test_list_shows_step_size_loss_ranks_and_strategy(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "step_1" / "rng.json").unlink()
    assert main(["list", str(out)]) == 0
    head, second, first = capsys.readouterr().out.splitlines()
    assert head.split() == ["checkpoint", "MB", "saved", "loss", "eval_loss", "ranks", "strategy"]
    assert [second.split()[i] for i in (0, 4, 5, 6, 7)] == ["step_2", "1.0000", "none", "1", "ddp"]
    assert first == "step_1       damaged: rng.json: No such file or directory"


def test_list_counts_quarantined_checkpoints(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(out / "step_2" / "r00000.safetensors")
    Session.start(out).resume()
    capsys.readouterr()
    assert main(["list", str(out)]) == 0
    assert f"1 more set aside in {out / 'quarantine'}\n" in capsys.readouterr().out


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_every_damage_and_moves_nothing(
    out: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[damage](out / "step_2")
    assert main(["verify", str(out)]) == 1
    second, first = capsys.readouterr().out.splitlines()
    assert second.startswith("step_2: damaged: ")
    assert first == "step_1: whole"
    assert main(["verify", str(out / "step_1")]) == 0
    assert (out / "step_2").exists()


@pytest.mark.processes
def test_list_and_verify_work_without_torch(out: Path) -> None:
    script = "import sys; sys.modules['torch'] = None; from trainer.checkpoint.__main__ import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in ("list", "verify"):
        argv = [sys.executable, "-c", script, command, "."]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=out, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("step_") == 2


def test_export_writes_the_newest_weights_as_safetensors(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "weights.safetensors"
    assert main(["export", str(out), str(target)]) == 0
    session = Session.start(out)
    session.resume()
    expected, found = session.strategy.unwrapped_model.state_dict(), load_file(target)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert f"wrote {len(expected)} tensors of {out / 'step_2'} to {target}\n" in capsys.readouterr().out


def test_best_checkpoint_is_that_of_the_lowest_eval_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, session = tmp_path / "out", Session.start(tmp_path / "out")
    for step, loss in enumerate((3.0, 1.0, 2.0), 1):
        session.checkpoints.save(TrainState(step, mean_loss=1 / step, eval_loss=loss), session.strategy)
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(out), "--best"]) == 0
    assert capsys.readouterr().out.endswith(f"of {out / 'step_2'} to step_2.safetensors\n")
    assert main(["list", str(out)]) == 0
    assert [line.split()[4:6] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["0.3333", "2.0000"], ["0.5000", "1.0000"], ["1.0000", "3.0000"],
    ]  # fmt: skip


def test_best_checkpoint_needs_an_evaluation(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(out), "--best"]) == 2
    message = f"error: {out}: no checkpoint has an eval_loss: set eval_steps, and save_steps to the same number; or leave out --best\n"
    assert capsys.readouterr().err == message


def test_export_makes_the_folders_above_its_target(out: Path, tmp_path: Path) -> None:
    assert main(["export", str(out), str(tmp_path / "models" / "new" / "weights.safetensors")]) == 0
    assert (tmp_path / "models" / "new" / "weights.safetensors").is_file()


def test_export_refuses_a_damaged_checkpoint_and_writes_nothing(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(out / "step_2" / "r00000.safetensors")
    target = tmp_path / "weights.safetensors"
    assert main(["export", str(out), str(target)]) == 2
    message = f"error: {out / 'step_2'}: damaged: r00000.safetensors: its hash does not match; name an older one\n"
    assert capsys.readouterr().err == message
    assert list(tmp_path.glob("weights*")) == []


def test_export_refuses_unsupported_dtypes_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session.start(tmp_path / "out")
    session.strategy.unwrapped_model.register_buffer("spectrum", torch.zeros(2, dtype=torch.complex64))
    session.train_and_save(1)
    target = tmp_path / "weights.safetensors"
    assert main(["export", str(tmp_path / "out"), str(target)]) == 2
    message = f"error: {tmp_path / 'out' / 'step_1'}: export writes tensors of float64, float32, "
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.endswith("bool, not spectrum (torch.complex64)\n")
    assert list(tmp_path.glob("weights*")) == []


@pytest.mark.parametrize("form", ["", "--dcp"])
def test_interrupted_export_leaves_nothing(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert list(tmp_path.glob("weights.tmp-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.safetensors.write", interrupt)
    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_saver.save", interrupt)
    assert main(["export", str(out), str(tmp_path / "weights"), *form.split()]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert list(tmp_path.glob("weights*")) == []


@pytest.mark.parametrize("command", ["list", "verify", "export"])
def test_unreadable_folder_is_one_error_message(out: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    assert main([command, long]) == 2
    assert capsys.readouterr().err == f"error: {long}: cannot be read: File name too long\n"
    if os.geteuid() != 0:
        out.chmod(0)
        try:
            assert main([command, str(out)]) == 2
        finally:
            out.chmod(0o700)
    else:
        os.seteuid(65534)  # nobody, who may not read the folder of root
        try:
            assert main([command, str(out)]) == 2
        finally:
            os.seteuid(0)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.endswith(": cannot be read: Permission denied\n")


@pytest.mark.parametrize(
    ("target", "reason"),
    [("there.safetensors", "File exists"), ("there.safetensors/new.safetensors", "Not a directory")],
)
def test_export_never_overwrites_and_names_the_unwritable_path(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, reason: str
) -> None:
    (tmp_path / "there.safetensors").write_text("precious")
    assert main(["export", str(out), str(tmp_path / target)]) == 2
    assert f"error: {tmp_path / target}: cannot be written: {reason}\n" in capsys.readouterr().err
    assert (tmp_path / "there.safetensors").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "no-such"], "error: no-such: no such folder\n"),
        (["verify", "."], "holds no step_N folder; name the folder that the trainer was given as out="),
        ([], "list|verify|export; python -m trainer.checkpoint --help explains more"),
        (["list", ".", "--all"], "unrecognized arguments: --all"),
    ],
)
def test_wrong_arguments_print_one_line_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
