"""The one interface between the trainer and what it trains."""

from __future__ import annotations

import abc
from typing import Any, Dict, Mapping, Protocol, Sequence

import torch
from torch.utils.data import dataloader

from trainer.config.config import TrainConfig
from trainer.errors import UserError

# `Any` below stands for a sample or a batch: tensors in any nesting of lists, tuples and dicts.


class Samples(Protocol):
    """
    What torch calls a map-style data set. A sample may be random: the trainer seeds what it draws from.

    Optional: `description`, text for the log; `digest()`, text that tells other data from these; and `is_random = False`,
    which saves the seeding.
    """

    def __len__(self) -> int:
        """At least 1."""

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        """Sample of that index; raises UserError where it is not what it should be."""


class Task(abc.ABC):
    """
    Model, data and loss of one training. All ranks make one, as `Class(config, **options)`, and call it alike.

    tokens_per_sample: for rates in tokens/s; None has them in samples/s.
    """

    tokens_per_sample: int | None = None

    def __init__(self, config: TrainConfig) -> None:
        """Override it with keyword arguments for `options.NAME=VALUE`. Raises UserError for what is wrong with them."""
        self.config = config

    @abc.abstractmethod
    def build_model(self) -> torch.nn.Module:
        """On the CPU, in fp32; the trainer has seeded the random generators, moves the model and wraps it."""

    @abc.abstractmethod
    def build_data(self, split: str) -> Samples | None:
        """
        The samples of "train", or of "validation", where None means that there are none.

        Raises:
            UserError: the data are missing or wrong; so does an OSError end all ranks with one message.
        """

    @abc.abstractmethod
    def loss(self, model: Any, batch: Any) -> torch.Tensor:  # noqa: ANN401
        """One number, the mean over a batch; `model` is to be called as it is, for it is wrapped."""

    def evaluate(self, model: Any, batch: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Means over a batch of "validation", by name; called without gradients, the model in evaluation mode."""
        return {"loss": self.loss(model, batch)}

    def collate(self, samples: Sequence[Any]) -> Any:  # noqa: ANN401
        """A batch of samples."""
        return dataloader.default_collate(list(samples))

    def blocks(self, model: torch.nn.Module) -> Sequence[torch.nn.Module]:  # noqa: ARG002 -- for who overrides it
        """
        The parts that fsdp2 gathers and that activation_checkpointing recomputes one at a time; modules called as they are.

        Without any, fsdp2 gathers the whole model at once, and activation_checkpointing=true is an error.
        """
        return ()

    def initialise(self, name: str, weight: torch.Tensor) -> None:
        """
        Give a parameter, whole and on the CPU, its first values, by its name and the seed alone.

        A task that has this gets its model built without memory, and filled a parameter at a time: under fsdp2 and zero3 no
        rank then holds the whole model. A model with buffers, other plain tensors or a parameter in two places is built whole
        on every rank all the same, and its parameters filled. Without it, the values are those of build_model.
        """
        raise NotImplementedError

    def flops_per_sample(self, sizes: Mapping[str, int]) -> int | None:  # noqa: ARG002 -- as above
        """FLOPs of a training step, for MFU; `sizes` are the parameters' by name. None: there is no MFU."""
        return None


def loss_of(task: Task, model: Any, batch: Any) -> torch.Tensor:  # noqa: ANN401
    """
    The loss of a batch, which a strategy may take the gradient of.

    Raises:
        UserError: it is not one number.
    """
    loss: Any = task.loss(model, batch)
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UserError(
            f"task={task.config.task}: loss() gave {kind}: it has to be a tensor of one number, as .mean() gives"
        )
    return loss


def fills(task: Task) -> bool:
    """Whether it has `initialise`."""
    return type(task).initialise is not Task.initialise


def numbers(found: Mapping[str, Any]) -> Dict[str, float]:
    """What evaluate() gave, as plain numbers."""
    return {str(name): float(value) for name, value in found.items()}
