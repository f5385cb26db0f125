"""
Image classification as a task of the shared trainer: a small ResNet on folders of images, one folder per class.

    orch ssh-launch task=examples.classification.resnet:Classification data.paths=train data.validation=val options.size=64

It needs Pillow on the nodes. On CUDA, add channels_last=true, sync_batchnorm=true for small micro batches, and precision=bf16.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional

from trainer.config.config import TrainConfig
from trainer.data.images import ImageFolders
from trainer.tasks import Task

Batch = Tuple[torch.Tensor, torch.Tensor]  # images and classes


class Classification(Task):
    """
    Train a small ResNet to classify images.

    Its options, as `options.NAME=VALUE`: `size` of the images in pixels, `width` of the first layer in channels, and `head_lr`, the factor of
    the last layer's learning rate.
    """

    def __init__(self, config: TrainConfig, *, size: int = 64, width: int = 32, head_lr: float = 1.0) -> None:
        super().__init__(config)
        self.size, self.head_lr = size, head_lr
        self.training = ImageFolders(config.data.paths, size=size, training=True)
        self.width = width
        self.hits: List[torch.Tensor] = []
        self.seen = 0

    def build_model(self) -> nn.Module:
        return ResNet(len(self.training.classes), self.width)

    def build_data(self, split: str) -> ImageFolders | None:
        if split == "train":
            return self.training
        folders = self.config.data.validation
        known = self.training.classes
        return (
            ImageFolders(folders, size=self.size, training=False, key="data.validation", classes=known)
            if folders
            else None
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        images, classes = batch
        scores = model(images).float()
        self.hits.append((scores.detach().argmax(1) == classes).sum())
        self.seen += len(classes)
        return functional.cross_entropy(scores, classes)

    def metrics(self) -> Mapping[str, Any]:
        found: Dict[str, Any] = {"accuracy": (torch.stack(self.hits).sum(), self.seen)} if self.hits else {}
        self.hits, self.seen = [], 0
        return found

    def param_group(self, name: str) -> Mapping[str, float]:
        return {"lr_factor": self.head_lr} if name.startswith("head.") and self.head_lr != 1.0 else {}

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        images, classes = batch
        scores = model(images).float()
        hits = (scores.argmax(1) == classes).sum()
        return {"loss": functional.cross_entropy(scores, classes), "accuracy": (hits, len(classes))}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, ResNet)
        return list(model.stages)


class ResNet(nn.Module):
    """Three stages of two residual blocks; [batch, 3, size, size] -> [batch, classes]."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = (width, 2 * width, 4 * width)
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(before, after, stride=1 if before == after else 2), Residual(after, after, stride=1))
            for before, after in zip((width, *widths), widths)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores


class Residual(nn.Module):
    """Two convolutions with BatchNorm, added to the input."""

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = functional.relu(self.change(x) + self.shortcut(x))
        return added
