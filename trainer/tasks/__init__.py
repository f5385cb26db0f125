"""A task is one class with model, data and loss: `from trainer.tasks import Task`. gpt.py is the default."""

from trainer.data.samples import Samples
from trainer.tasks.base import Task

__all__ = ["Samples", "Task"]
