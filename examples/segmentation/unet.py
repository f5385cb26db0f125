"""
Image segmentation as a task of the shared trainer: a small U-Net.

    orch ssh-launch task=examples.segmentation.unet:Segmentation steps=500 eval_steps=100 options.width=32

trains on images that it draws itself; with data.paths=FOLDER on pairs NAME.image.npy (float, [channels, height, width])
and NAME.mask.npy (whole numbers, [height, width], the class of each pixel), and data.validation=FOLDER evaluates.
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
    """Every option has a default, so `options.NAME=VALUE` names only what is to be otherwise."""

    def __init__(
        self, config: TrainConfig, *, width: int = 16, classes: int = 3, channels: int = 3, size: int = 64
    ) -> None:
        super().__init__(config)
        if size % UNet.FACTOR:
            raise UserError(
                f"options.size={size}: allowed: multiples of {UNet.FACTOR}, for the U-Net halves it that often"
            )
        self.width, self.classes, self.channels, self.size = width, classes, channels, size

    def build_model(self) -> UNet:
        return UNet(self.channels, self.classes, self.width)

    def build_data(self, split: str) -> Drawn | Folder:
        folders = self.config.data.paths if split == "train" else self.config.data.validation
        if folders:
            return Folder(folders, self.size)
        return Drawn(2000 if split == "train" else 64, self, first=0 if split == "train" else 1_000_000)

    def loss(self, model: Any, batch: Pair) -> torch.Tensor:  # noqa: ANN401 -- wrapped
        images, masks = batch
        return functional.cross_entropy(model(images).float(), masks)

    def evaluate(self, model: Any, batch: Pair) -> dict[str, torch.Tensor]:  # noqa: ANN401 -- wrapped
        images, masks = batch
        scores = model(images).float()
        found = scores.argmax(1)
        overlaps = [_overlap(found == kind, masks == kind) for kind in range(self.classes)]
        return {
            "loss": functional.cross_entropy(scores, masks),
            "accuracy": (found == masks).float().mean(),
            "iou": torch.stack(overlaps).mean(),
        }

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, UNet)
        return [*model.down, model.bottom, *model.up]


def _overlap(found: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Intersection over union; 1 where there is nothing to find and nothing was found."""
    union = (found | true).sum()
    return torch.where(union > 0, (found & true).sum() / union.clamp(min=1), torch.ones((), device=union.device))


class UNet(nn.Module):
    """Two steps down, two steps up; [batch, channels, height, width] -> [batch, classes, height, width]."""

    FACTOR = 4

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_twice(channels, width), _twice(width, 2 * width)])
        self.bottom = _twice(2 * width, 4 * width)
        self.up = nn.ModuleList([_twice(6 * width, 2 * width), _twice(3 * width, width)])
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


def _twice(before: int, after: int) -> nn.Sequential:
    layers: List[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class Drawn:
    """Discs of a colour a class, on noise; each sample follows from its number."""

    is_random = False

    def __init__(self, count: int, task: Segmentation, first: int) -> None:
        self.count, self.first = count, first
        self.classes, self.channels, self.size = task.classes, task.channels, task.size
        self.description = f"{count} drawn images"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        draw = torch.Generator().manual_seed(self.first + index)
        image = 0.3 * torch.randn(self.channels, self.size, self.size, generator=draw)
        mask = torch.zeros(self.size, self.size, dtype=torch.long)
        ticks = torch.arange(self.size).float()
        for kind in range(1, self.classes):
            row, column, radius = (torch.rand(3, generator=draw) * self.size).tolist()
            inside = (ticks[:, None] - row) ** 2 + (ticks - column) ** 2 < (4 + radius / 4) ** 2
            image[:, inside] += 1.0
            image[kind % self.channels, inside] += 1.0
            mask[inside] = kind
        return image, mask


class Folder:
    """Pairs of files, each cut at random to the size of all, so that they go into one batch."""

    def __init__(self, folders: Sequence[str], size: int) -> None:
        self.size = size
        self.images = [path for folder in folders for path in sorted(Path(folder).expanduser().glob("*.image.npy"))]
        if not self.images:
            raise UserError(f"{', '.join(folders)}: no NAME.image.npy there")
        self.description = f"{len(self.images)} images"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Pair:
        import numpy as np  # noqa: PLC0415 -- drawn images need none

        path = self.images[index]
        image, mask = (
            np.load(path.with_name(path.name.replace(".image.npy", f".{kind}.npy")), mmap_mode="r")
            for kind in ("image", "mask")
        )
        height, width = mask.shape
        if min(height, width) < self.size or image.shape[1:] != mask.shape:
            raise UserError(
                f"{path}: {image.shape}, its mask {mask.shape}: both have to be alike, and options.size at least"
            )
        top = int(torch.randint(height - self.size + 1, ()))  # seeded by the trainer: a resumed run draws the same
        left = int(torch.randint(width - self.size + 1, ()))
        cut = slice(top, top + self.size), slice(left, left + self.size)
        return torch.from_numpy(image[:, cut[0], cut[1]].astype("f4")), torch.from_numpy(mask[cut].astype("i8"))
