"""
Image segmentation as a task of the shared trainer: a small U-Net.

    orch ssh-launch task=examples.segmentation.unet:Segmentation steps=500 eval_steps=100 options.width=32

trains on synthetic images. data.paths=FOLDER trains on pairs NAME.image.npy (float, [channels, height, width]) and
NAME.mask.npy (integers, [height, width], the class of each pixel) instead; data.validation=FOLDER evaluates on such pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.tasks import Task

Pair = Tuple[torch.Tensor, torch.Tensor]  # image and mask


class Segmentation(Task):
    """The task; every option has a default, and `options.NAME=VALUE` overrides it."""

    def __init__(
        self, config: TrainConfig, *, width: int = 16, classes: int = 3, channels: int = 3, size: int = 64
    ) -> None:
        super().__init__(config)
        if size % UNet.FACTOR:
            raise UserError(
                f"options.size={size}: allowed: multiples of {UNet.FACTOR}, because the U-Net halves the size twice"
            )
        self.width, self.classes, self.channels, self.size = width, classes, channels, size

    def build_model(self) -> UNet:
        return UNet(self.channels, self.classes, self.width)

    def build_data(self, split: str) -> SyntheticImages | ImageFolder:
        folders = self.config.data.paths if split == "train" else self.config.data.validation
        if folders:
            return ImageFolder(folders, self.size)
        return SyntheticImages(2000 if split == "train" else 64, self, first=0 if split == "train" else 1_000_000)

    def loss(self, model: torch.nn.Module, batch: Pair) -> torch.Tensor:
        images, masks = batch
        return functional.cross_entropy(model(images).float(), masks)

    def evaluate(self, model: torch.nn.Module, batch: Pair) -> dict[str, Any]:
        images, masks = batch
        scores = model(images).float()
        predicted = scores.argmax(1)
        labels = range(self.classes)
        hits, either = (
            torch.stack([both(predicted == label, masks == label).sum() for label in labels])
            for both in (torch.logical_and, torch.logical_or)
        )
        return {
            "loss": functional.cross_entropy(scores, masks),
            "accuracy": (predicted == masks).float().mean(),
            "iou": (hits, either),  # intersection over union of each class, over all images
        }

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, UNet)
        return [*model.down, model.bottom, *model.up]


class UNet(nn.Module):
    """Two steps down, two steps up; [batch, channels, height, width] -> [batch, classes, height, width]."""

    FACTOR = 4

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double_conv(channels, width), _double_conv(width, 2 * width)])
        self.bottom = _double_conv(2 * width, 4 * width)
        self.up = nn.ModuleList([_double_conv(6 * width, 2 * width), _double_conv(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, skipped = image, []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skipped.pop()], dim=1))
        scores: torch.Tensor = self.head(x)
        return scores


def _double_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    layers: List[nn.Module] = []
    for channels in (in_channels, out_channels):
        layers += [
            nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class SyntheticImages:
    """Discs on noise, one colour per class; the index of a sample determines it."""

    is_random = False

    def __init__(self, count: int, task: Segmentation, first: int) -> None:
        self.count, self.first = count, first
        self.classes, self.channels, self.size = task.classes, task.channels, task.size
        self.description = f"{count} synthetic images"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        generator = torch.Generator().manual_seed(self.first + index)
        image = 0.3 * torch.randn(self.channels, self.size, self.size, generator=generator)
        mask = torch.zeros(self.size, self.size, dtype=torch.long)
        pixels = torch.arange(self.size).float()
        for label in range(1, self.classes):
            row, column, radius = (torch.rand(3, generator=generator) * self.size).tolist()
            inside = (pixels[:, None] - row) ** 2 + (pixels - column) ** 2 < (4 + radius / 4) ** 2
            image[:, inside] += 1.0
            image[label % self.channels, inside] += 1.0
            mask[inside] = label
        return image, mask


class ImageFolder:
    """Pairs of image and mask files, each cropped at random to one size, so that they form batches."""

    def __init__(self, folders: Sequence[str], size: int) -> None:
        self.size = size
        self.images = [path for folder in folders for path in sorted(Path(folder).expanduser().glob("*.image.npy"))]
        if not self.images:
            raise UserError(f"{', '.join(folders)}: no NAME.image.npy in it")
        self.description = f"{len(self.images)} images"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Pair:
        import numpy as np  # noqa: PLC0415 -- synthetic images need none

        path = self.images[index]
        image, mask = (
            np.load(path.with_name(path.name.replace(".image.npy", f".{kind}.npy")), mmap_mode="r")
            for kind in ("image", "mask")
        )
        height, width = mask.shape
        if min(height, width) < self.size or image.shape[1:] != mask.shape:
            raise UserError(
                f"{path}: {image.shape}, its mask {mask.shape}: must have one size, at least options.size={self.size}"
            )
        top = int(torch.randint(height - self.size + 1, ()))  # seeded by the trainer: a resumed run crops the same
        left = int(torch.randint(width - self.size + 1, ()))
        rows, columns = slice(top, top + self.size), slice(left, left + self.size)
        image_crop, mask_crop = image[:, rows, columns].astype("f4"), mask[rows, columns].astype("i8")
        return torch.from_numpy(image_crop), torch.from_numpy(mask_crop)
