"""Images in one folder per class."""

from __future__ import annotations

import importlib
import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds import components
from trainer.data.images import DEVIATION, MEAN, ImageFolders
from trainer.errors import UserError


def _pillow() -> Any:  # a module
    components.module("PIL")
    return importlib.import_module("PIL.Image")


def _save(path: Path, colour: tuple[int, ...], size: tuple[int, int] = (12, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _pillow().new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _save(tmp_path / "dog" / "b.png", (255, 0, 0))
    _save(tmp_path / "cat" / "deep" / "a.JPG", (0, 0, 255))
    _save(tmp_path / "cat" / "grey.png", (128,), mode="L")
    (tmp_path / "cat" / "notes.txt").touch()
    return tmp_path


def test_samples_are_normalised_squares_with_the_number_of_their_class(folder: Path) -> None:
    images = ImageFolders([str(folder)], size=4, training=False)
    assert (images.classes, images.description) == (["cat", "dog"], "3 images of 2 classes")
    assert [number for _, number in (images[index] for index in range(len(images)))] == [0, 0, 1]
    red, _ = images[2]
    assert red.shape == (3, 4, 4)
    assert red[:, 0, 0].tolist() == pytest.approx(
        [(value - mean) / deviation for value, mean, deviation in zip((1, 0, 0), MEAN, DEVIATION, strict=True)]
    )


def test_validation_takes_the_middle_and_training_a_random_part_that_may_be_mirrored(tmp_path: Path) -> None:
    image: Any = _pillow().new("RGB", (12, 4))
    for column in range(12):
        for row in range(4):
            image.putpixel((column, row), (20 * column, 0, 0))
    (tmp_path / "one").mkdir()
    image.save(tmp_path / "one" / "a.png")
    validation = ImageFolders([str(tmp_path)], size=4, training=False)
    columns = (validation[0][0][0, 0] * DEVIATION[0] + MEAN[0]) * 255 / 20
    assert columns.tolist() == pytest.approx([4, 5, 6, 7])
    training = ImageFolders([str(tmp_path)], size=4, training=True)
    random.seed(0)
    rows = [training[0][0][0, 0] for _ in range(20)]
    assert len({tuple(row.tolist()) for row in rows}) > 10
    assert {bool(row[0] < row[-1]) for row in rows} == {True, False}


def test_classes_of_a_validation_are_those_of_the_training(tmp_path: Path) -> None:
    validation_folder = tmp_path / "other"
    _save(validation_folder / "dog" / "c.png", (1, 2, 3))
    validation = ImageFolders([str(validation_folder)], size=4, training=False, classes=("cat", "dog"))
    assert validation[0][1] == 1
    _save(validation_folder / "emu" / "c.png", (1, 2, 3))
    with pytest.raises(UserError, match=r"^data.validation: the class emu is not one of the training: cat, dog$"):
        ImageFolders([str(validation_folder)], size=4, training=False, key="data.validation", classes=("cat", "dog"))


def test_linked_folders_are_read_and_one_that_leads_back_ends(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    _save(elsewhere / "deep" / "c.png", (1, 2, 3))
    (folder / "emu").symlink_to(elsewhere)
    (folder / "dog" / "more").symlink_to(elsewhere / "deep")
    (folder / "cat" / "back").symlink_to(folder)
    images = ImageFolders([str(folder)], size=4, training=False)
    assert (images.classes, images.description) == (["cat", "dog", "emu"], "5 images of 3 classes")


def test_digest_differs_for_other_images(folder: Path) -> None:
    def digest() -> str:
        return ImageFolders([str(folder)], size=4, training=True).digest()

    before = digest()
    assert digest() == before
    _save(folder / "dog" / "b.png", (255, 0, 0), size=(90, 90))
    assert digest() != before


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "data.paths: not set: name folders that have one folder of images per class"),
        (["nowhere"], "data.paths: nowhere: name folders"),
        (["empty"], "data.paths: empty: there is no CLASS/NAME with one of the suffixes .bmp, .jpeg"),
    ],
)
def test_folders_without_images_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "loose.png").touch()
    with pytest.raises(UserError) as caught:
        ImageFolders(names, size=4, training=True)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"text"])
def test_file_that_is_no_image_is_named(folder: Path, content: bytes) -> None:
    (folder / "dog" / "b.png").write_bytes(content)
    with pytest.raises(UserError, match=r"dog/b\.png: cannot be read as an image: "):
        ImageFolders([str(folder)], size=4, training=False)[2]


def test_missing_pillow_is_named_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"^data\.paths: reading images needs Pillow: pip install 'pillow"):
        ImageFolders([str(folder)], size=4, training=False)


def test_values_are_those_of_pillow(folder: Path) -> None:
    sample, _ = ImageFolders([str(folder)], size=4, training=False)[1]
    grey = torch.tensor(128 / 255).expand(3)
    assert torch.allclose(sample[:, 2, 2], (grey - torch.tensor(MEAN)) / torch.tensor(DEVIATION))
