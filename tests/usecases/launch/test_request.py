"""The module of a task that a launch of the shared trainer sends to the nodes."""

from __future__ import annotations

import pytest

from orchestrator.usecases.launch.request import TrainerConfig


@pytest.mark.parametrize(
    ("task", "module"),
    [
        ("trainer.tasks.gpt:Gpt", None),
        ("hf:/models/small", None),  # the current folder may hold the data, or be the home folder
        ("hf:small", None),
        ("hf.tasks:Mine", ("-m", "hf.tasks")),
        ("trainers.unet:Segmentation", ("-m", "trainers.unet")),
    ],
)
def test_module_of_a_task_travels_unless_the_trainer_has_it(task: str, module: tuple[str, str] | None) -> None:
    assert TrainerConfig(None, task).user_module == module
