"""The interface between the trainer and a task."""

from __future__ import annotations

import abc
from typing import Any, Mapping, Sequence

import torch
from torch.utils.data import dataloader

from trainer.config.config import TrainConfig
from trainer.data.samples import Samples
from trainer.errors import UserError
from trainer.tasks.attention import AttentionShape
from trainer.tasks.continuation import Codec
from trainer.values import Batch, Model


class Task(abc.ABC):
    """
    Model, data and loss of one training run. Every rank makes one, as `Class(config, **options)`, and calls it alike.

    tokens_per_sample: for rates in tokens/s; None means samples/s.
    unused_weights: patterns of the names in init=PATH that the model does not have and leaves out; others are an error.
    writes_no_files: set it to True if the task's code writes no files that several nodes see. Then orch does not wait for the ranks of a
        lost node, which may still run this code, before it starts the next attempt.
    weights_are_loaded: set by the trainer if a checkpoint or init= gives the weights, so that none are drawn.
    """

    tokens_per_sample: int | None = None
    unused_weights: Sequence[str] = ()
    writes_no_files = False
    weights_are_loaded = False

    def __init__(self, config: TrainConfig) -> None:
        """Override it with keyword arguments for `options.NAME=VALUE`. Raises UserError if they are invalid."""
        self.config = config

    @abc.abstractmethod
    def build_model(self) -> torch.nn.Module:
        """Build the model on the CPU, in fp32. The trainer seeds the random generators before, and moves and wraps the model."""

    def build_unfilled(self) -> torch.nn.Module | None:  # for overriding methods
        """
        Build the model with buffers and with parameters on `meta`, if a checkpoint or init= gives the values of all of these, else None.

        fsdp2 then never holds the whole model on a rank. Parameters that are not on `meta` keep their values.
        """
        return None

    @abc.abstractmethod
    def build_data(self, split: str) -> Samples | None:
        """
        The samples of "train" or "validation"; None for no validation samples.
        Raises UserError: the data are missing or invalid. It ends all ranks with one message, as an OSError does.
        """

    @abc.abstractmethod
    def loss(self, model: Model, batch: Batch) -> torch.Tensor:
        """Return a scalar, the mean over a batch, or with count_terms() the sum over its terms. Call `model` itself: it is wrapped."""

    def count_terms(self, batch: Batch) -> torch.Tensor | float:
        """
        Return the number of terms that loss() adds, such as tokens that are not masked, as a number or a tensor.

        With this method, the loss of a step is the sum over all micro batches and ranks divided by the number of all terms,
        so it does not depend on how they are spread. The micro batches of a step are then on the device together. Without
        this method, all micro batches count alike.
        """
        raise NotImplementedError

    def evaluate(self, model: Model, batch: Batch) -> Mapping[str, Any]:
        """
        Values of a batch of "validation", by name; called without gradients, the model in evaluation mode.

        A number is a mean over the samples. A pair is (sum, count): both are added over all batches and ranks before they are
        divided. It has two numbers, or two tensors of equal shape, such as intersection and union of each class; the result
        is then the mean of the quotients whose count is not 0.
        """
        loss = self.loss(model, batch)
        return {"loss": (loss, self.count_terms(batch)) if counts_terms(self) else loss}

    def codec(self) -> Codec | None:  # for overriding methods
        """
        Return the codec of the model's tokens, for sample_prompts; None: the task does not continue texts.
        Raises UserError: there is no tokenizer, or it does not fit the model.
        """
        return None

    def next_logits(self, model: Model, tokens: torch.Tensor, at: int) -> torch.Tensor:
        """With codec(): return the logits [vocabulary] of the token after token `at` of int64 [1, length]; later tokens have no meaning."""
        raise NotImplementedError

    def attention(self, batch: Batch) -> AttentionShape | None:  # for overriding methods
        """Return the attention of the model for such a batch, for the line at the start with torch's kernel; None: no line."""
        return None

    def metrics(self) -> Mapping[str, Any]:
        """
        Further values of the training by name, such as an accuracy, since the last call; in the form of evaluate()'s pairs.

        Called on every rank every log_steps steps and after the last; a task collects them in loss(). The values of all ranks are
        added before they are divided, and recorded with the step.
        """
        return {}

    def param_group(self, name: str) -> Mapping[str, float]:  # for overriding methods
        """
        Settings of a parameter that differ from the others': lr_factor, which multiplies the learning rate, and weight_decay.

        By default, matrices have optim.weight_decay and vectors none. With other values, `strategy` is ddp or fsdp2.
        """
        return {}

    def collate(self, samples: Sequence[Any]) -> Batch:
        """Return a batch of samples."""
        return dataloader.default_collate(list(samples))

    def blocks(self, model: torch.nn.Module) -> Sequence[torch.nn.Module]:  # for overriding methods
        """
        The modules that fsdp2 gathers, and that activation_checkpointing recomputes, one at a time.

        Without blocks, fsdp2 gathers the whole model at once, and activation_checkpointing=true is an error.
        """
        return ()

    def ends(self, model: torch.nn.Module) -> Sequence[Sequence[torch.nn.Module]]:  # for overriding methods
        """
        Groups of the modules before and after the blocks, such as the embeddings, and the last norm with the head.

        fsdp2 gathers each group when its first module is called, so each has to be called. Weights that are neither in blocks
        nor in ends are gathered before the first block, and stay.
        """
        return ()

    def initialise(self, name: str, weight: torch.Tensor) -> None:
        """
        Fill a parameter, whole and on the CPU, from its name and the seed alone.

        With this method the model is built on `meta` and filled one parameter at a time, so under fsdp2 and zero3 no rank
        holds the whole model. A model with buffers, other plain tensors or tied parameters is still built whole on every
        rank, then its parameters are filled. Without this method, parameters keep the values of build_model.
        """
        raise NotImplementedError

    def flops_per_sample(self, sizes: Mapping[str, int]) -> int | None:
        """FLOP of a training step per sample, for MFU; `sizes`: parameter name -> numbers. None: no MFU."""
        return None


def loss_of(task: Task, model: Model, batch: Batch) -> torch.Tensor:
    """The loss of a batch. Raises UserError: it is not one number."""
    loss: Any = task.loss(model, batch)
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UserError(
            f"task={task.config.task}: loss() gave {kind}: it has to be a tensor of one number, as .mean() gives"
        )
    return loss


def has_initialise(task: Task) -> bool:
    return type(task).initialise is not Task.initialise


def draws_weights(task: Task) -> bool:
    """`initialise` gives the weights to start from, not a checkpoint or init=, which has none of adapters."""
    return not task.weights_are_loaded and (task.config.init is None or task.config.lora.rank is not None)


def has_metrics(task: Task) -> bool:
    return type(task).metrics is not Task.metrics


def writes_no_files(task: Task) -> bool:
    """The trainer's own tasks, and those that declare it; not other classes derived from the former."""
    return task.writes_no_files or type(task).__module__.startswith(f"{__package__}.")


def counts_terms(task: Task) -> bool:
    return type(task).count_terms is not Task.count_terms
