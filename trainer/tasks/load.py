"""Load the task of `task=package.module:Class` or `task=hf:FOLDER`; every mistake in it is a UserError."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any, Type

from trainer.config.config import HF_TASK, OPTIONS, TrainConfig
from trainer.errors import UserError
from trainer.tasks.base import Task
from trainer.tasks.hf import HuggingFaceModel


def load_task(config: TrainConfig) -> Task:
    """
    Import the module, also from the working folder, and make the task.
    Raises UserError: there is no such module or class, it fails when it is imported or made, it lacks methods, or it does not
    take the options.
    """
    if config.task.startswith(HF_TASK):
        return _construct(HuggingFaceModel, config)
    module, _, name = config.task.partition(":")
    found = getattr(_import_module(module, config.task), name, None)
    if found is None:
        raise UserError(f"task={config.task}: module {module} has no {name}")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise UserError(f"task={config.task}: {name} is no class derived from trainer.tasks.Task")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"task={config.task}: {name} lacks {', '.join(f'{method}()' for method in missing)}")
    return _construct(found, config)


def _construct(kind: Type[Any], config: TrainConfig) -> Task:
    signature = inspect.signature(kind)
    try:
        signature.bind(config, **config.options)
    except TypeError as exc:
        names = [f"{OPTIONS}{name}" for name in list(signature.parameters)[1:]]
        raise UserError(f"task={config.task}: {exc}; it takes {', '.join(names) or 'no options'}") from exc
    try:
        task: Task = kind(config, **config.options)
    except UserError:
        raise
    except Exception as exc:
        raise UserError(f"task={config.task}: cannot be made: {_one_line(exc)}") from exc
    if not isinstance(getattr(task, "config", None), TrainConfig):
        raise UserError(f"task={config.task}: its __init__ has to call super().__init__(config)")
    return task


def _import_module(module: str, task: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise UserError(f"task={task}: module {module} cannot be imported: {_one_line(exc)}") from exc
        raise UserError(
            f"task={task}: there is no module {exc.name}, looked for from {os.getcwd()} and where Python is installed"
        ) from exc
    except Exception as exc:
        raise UserError(f"task={task}: module {module} cannot be imported: {_one_line(exc)}") from exc


def _one_line(error: BaseException) -> str:
    """An exception of the task's code in one line, with file and line where it was raised."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text
