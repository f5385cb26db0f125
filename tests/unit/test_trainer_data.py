"""Which text the trainer reads, and which bytes a rank gets at a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data import digest, load_text, offsets
from trainer.errors import UserError


def _offsets(seed: int = 0, step: int = 1, rank: int = 0, micro: int = 0) -> list[int]:
    return offsets(seed, step, rank, micro, count=4, text_bytes=100_000, context=32)


def test_offsets_are_the_same_on_every_machine_and_python() -> None:
    """Pinned: a change here changes the loss of every run that is resumed or compared."""
    assert _offsets() == [3262, 38646, 85657, 8649]


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 2}, {"rank": 1}, {"micro": 1}])
def test_every_coordinate_changes_the_batch(other: dict[str, int]) -> None:
    assert _offsets(**other) != _offsets()


def test_samples_stay_inside_the_shortest_text_allowed() -> None:
    assert offsets(0, 1, 0, 0, count=50, text_bytes=33, context=32) == [0] * 50


def test_folder_is_read_in_name_order_wherever_it_lies(tmp_path: Path) -> None:
    texts = []
    for place in ("z", "a/deeper"):
        folder = tmp_path / place
        (folder / "sub").mkdir(parents=True)
        (folder / "b.txt").write_text("second")
        (folder / "a.txt").write_text("first ")
        (folder / "sub" / "c.txt").write_text(" third")
        (folder / ".hidden").write_text("never")
        texts.append(load_text([str(folder)], 4))
    assert texts == [b"first second third"] * 2


def test_files_and_globs_come_in_the_order_given(tmp_path: Path) -> None:
    for name in ("1.log", "2.log", "x.txt"):
        (tmp_path / name).write_text(name)
    assert load_text([str(tmp_path / "x.txt"), str(tmp_path / "*.log")], 4) == b"x.txt1.log2.log"


def test_without_paths_the_standard_library_is_the_text() -> None:
    text = load_text([], 128)
    assert len(text) > 1_000_000
    assert digest(text) == digest(load_text([], 128))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.txt", "no such file or folder"),
        ("*.nothing", "no such file or folder"),
        ("empty", "the folder holds no file"),
        ("short.txt", "3 bytes of text, model.context=32 needs at least 33"),
    ],
)
def test_unusable_data_is_named(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(UserError) as caught:
        load_text([str(tmp_path / name)], 32)
    assert problem in str(caught.value)
    assert name in str(caught.value)
