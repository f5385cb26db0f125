"""The interface of a data set, and of the part of a task that makes its data."""

from __future__ import annotations

from typing import Any, Protocol, Sequence

from trainer.config.config import TrainConfig
from trainer.values import Batch


class Samples(Protocol):
    """
    A map-style data set of torch. Samples may be random: the trainer seeds the generators.

    Optional: `description`, text for the log; `digest()`, text that differs for other data; `is_random = False`, which saves the
    seeding; and `order(seed, name)`, another order than that of trainer/data/order.py.
    """

    def __len__(self) -> int:
        """At least 1."""

    def __getitem__(self, index: int) -> Batch:
        """Return the sample with this index; raises UserError if it is invalid."""


class DataTask(Protocol):
    """The members of a Task (trainer/tasks/base.py) that this package uses."""

    config: TrainConfig

    def build_data(self, split: str) -> Samples | None:
        """Return the samples of "train" or "validation"; None for no validation samples."""

    def collate(self, samples: Sequence[Any]) -> Batch:
        """Return a batch of samples."""
