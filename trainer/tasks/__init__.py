"""What is trained, as a class: `from trainer.tasks import Task`. The GPT is one, in gpt.py; yours is another."""

from trainer.tasks.base import Samples, Task

__all__ = ["Samples", "Task"]
