"""Images in one folder per class, decoded by Pillow."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import random
from pathlib import Path
from typing import Any, List, Sequence, Tuple

import torch

from trainer.errors import UserError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
# Mean and deviation of ImageNet's images, by which nearly all published weights expect their input to be normalised.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEAST_SHARE = 0.5  # of the shorter side, in a random crop

Sample = Tuple[torch.Tensor, int]


class ImageFolders:
    """
    FOLDER/CLASS/**/NAME.jpg: samples (image, number of the class), the image as float [3, size, size] with mean 0.

    For a training, each is a random square of the image, mirrored at random; else the square in its middle.

    Attributes:
        classes: the names of the folders, sorted; their indices are the numbers.
    """

    def __init__(
        self, folders: Sequence[str], *, size: int, training: bool, key: str = "data.paths", classes: Sequence[str] = ()
    ) -> None:
        """
        Args:
            folders: each with one folder per class.
            size: height and width of the samples.
            training: samples are random; the trainer seeds the generators.
            key: the setting that `folders` come from, for messages.
            classes: the classes of the training, for other data: no other may be there.

        Raises:
            UserError: there is no Pillow, no class or no image; or a class that `classes` does not have.
        """
        if importlib.util.find_spec("PIL") is None:
            raise UserError(
                f"{key}: reading images needs Pillow: pip install 'pillow>=10.3', for the Python of the ranks"
            )
        self.size, self.is_random = size, training
        roots = [Path(folder).expanduser() for folder in folders]
        missing = [str(root) for root in roots if not root.is_dir()]
        if missing or not roots:
            raise UserError(
                f"{key}: {', '.join(missing) or 'not set'}: name folders that have one folder of images per class"
            )
        found = [(path.relative_to(root).parts[0], root, path) for root in roots for path in _images_below(root)]
        self.classes: Sequence[str] = list(classes) or sorted({name for name, _, _ in found})
        unknown = sorted({name for name, _, _ in found} - set(self.classes))
        if unknown:
            raise UserError(f"{key}: the class {unknown[0]} is not one of the training: {', '.join(self.classes)}")
        if not found:
            raise UserError(
                f"{key}: {', '.join(folders)}: there is no CLASS/NAME with one of the suffixes {', '.join(SUFFIXES)}"
            )
        number = {name: index for index, name in enumerate(self.classes)}
        self._images: List[Tuple[Path, Path, int]] = [(root, path, number[name]) for name, root, path in found]
        self.description = f"{len(self._images)} images of {len(self.classes)} classes"

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        _, path, number = self._images[index]
        pillow: Any = importlib.import_module("PIL.Image")
        try:
            with pillow.open(path) as file:
                image = file.convert("RGB")
        # A damaged PNG is a SyntaxError.
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as exc:
            raise UserError(f"{path}: cannot be read as an image: {exc}") from exc
        box = _square(*image.size, is_random=self.is_random)
        image = image.resize((self.size, self.size), pillow.Resampling.BILINEAR, box=box)
        if self.is_random and random.random() < 0.5:  # noqa: PLR2004 -- half of them
            image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3)
        scaled = pixels.permute(2, 0, 1).float() / 255
        mean, deviation = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(DEVIATION).view(3, 1, 1)
        return (scaled - mean) / deviation, number

    def digest(self) -> str:
        """The names and sizes of all files: reading them takes too long."""
        entries = (f"{path.relative_to(root)} {path.stat().st_size} {number}" for root, path, number in self._images)
        return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


def _images_below(root: Path) -> List[Path]:
    """The image files in the folders of `root`, in an order that every machine repeats. Links are followed, except to a folder they are in."""
    files: List[Path] = []
    for text, below, names in os.walk(str(root), followlinks=True):
        folder = Path(text)
        parts = folder.relative_to(root).parts
        around = {os.path.realpath(root.joinpath(*parts[:count])) for count in range(len(parts) + 1)}
        below[:] = [name for name in below if os.path.realpath(folder / name) not in around]
        if folder != root:
            files += [folder / name for name in names if Path(name).suffix.lower() in SUFFIXES]
    return sorted(files, key=lambda path: path.relative_to(root).parts)


def _square(width: int, height: int, *, is_random: bool) -> Tuple[int, int, int, int]:
    """A random square, or the one in the middle: left, top, right and bottom."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if is_random:  # seeded by the trainer
        side = max(1, round(side * random.uniform(LEAST_SHARE, 1.0)))
        left, top = random.randint(0, width - side), random.randint(0, height - side)
    return left, top, left + side, top + side
