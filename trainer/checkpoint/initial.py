"""Weights to start from, init=PATH: read by rank 0 and sent to the others, as those of a checkpoint."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import torch

from trainer.checkpoint.state_file import allocate, outline
from trainer.console import log_line
from trainer.errors import UserError
from trainer.optim.adamw import whole_shape
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.safetensors import KINDS, Entry, FormatError, SafetensorsFile
from trainer.tasks.base import Task

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
NAMED_AT_MOST = 3


def load_initial(path: Path, strategy: Strategy, task: Task, group: Group) -> None:
    """
    Load the weights at `path` into the model; only rank 0 reads files.

    Raises:
        UserError: on all ranks alike; there are none, or they are not those of this model.
    """
    problem, state = "", None
    if group.rank.is_main:
        try:
            tensors = read_weights(path, shapes_of(strategy.unwrapped_model), task)
            state = {"model": tensors, "moments": {}}
        except UserError as exc:
            problem = f"init={path}: {exc}"
        except OSError as exc:  # of is_dir() and exists(): no permission, too long
            problem = f"init={path}: cannot be read: {exc.strerror}"
    problem = group.broadcast_bytes(problem.encode()).decode()
    if problem:
        raise UserError.agreed(problem)
    outline_bytes = group.broadcast_bytes(b"" if state is None else outline(state))
    strategy.load(allocate(outline_bytes, f"init={path}") if state is None else state)


def shapes_of(model: torch.nn.Module) -> Dict[str, Tuple[int, ...]]:
    """The whole shapes of parameters and persistent buffers by name, also of a model that is sharded."""
    return {name: tuple(whole_shape(tensor)) for name, tensor in model.state_dict(keep_vars=True).items()}


def read_weights(path: Path, shapes: Mapping[str, Tuple[int, ...]], task: Task) -> Dict[str, torch.Tensor]:
    """
    Return the tensors of the model by name, mapped from their files.

    Args:
        path: a safetensors file, or a folder of Hugging Face.
        shapes: what the model needs.
        task: for the names that it leaves out, and for messages.

    Raises:
        UserError: there is no such file, or a tensor is missing, foreign, or of another shape or type; the message lacks `path`.
    """
    files = _open_files(path)
    found = {name: file for file, opened in files.items() for name in opened.header.entries}
    unused = [name for name in found if any(fnmatch(name, pattern) for pattern in task.unused_weights)]
    problems = [f"{name} is missing, of shape {list(shapes[name])}" for name in shapes if name not in found]
    for name, file in found.items():
        if name in shapes:
            misfit = _misfit(files[file].header.entries[name], shapes[name])
            problems += [f"{file}: {name} {misfit}"] if misfit else []
        elif name not in unused:
            problems.append(f"{file}: {name} is not in the model")
    if problems:
        more = f"; and {len(problems) - NAMED_AT_MOST} more" if len(problems) > NAMED_AT_MOST else ""
        raise UserError(
            f"these are not the weights of task={task.config.task}: {'; '.join(problems[:NAMED_AT_MOST])}{more}"
        )
    entries = [files[file].header.entries[name] for name, file in found.items() if name in shapes]
    log_line(
        f"starting from {path}: {len(entries)} tensors, {', '.join(sorted({entry.kind for entry in entries}))}, "
        f"{sum(entry.end - entry.start for entry in entries) / 1e9:.2f} GB"
    )
    return {name: files[found[name]].tensor(name) for name in shapes}


def _misfit(entry: Entry, shape: Tuple[int, ...]) -> str:
    """Return how the tensor differs from the one that is needed, or ""."""
    if entry.shape != shape:
        return f"has shape {list(entry.shape)}, the model needs {list(shape)}"
    return "" if entry.kind in KINDS else f"is of type {entry.kind}: {', '.join(KINDS)} can be read"


def _open_files(path: Path) -> Dict[str, SafetensorsFile]:
    """Name -> file; for a folder with an index, those that it names. Raises UserError."""
    folder, names = (path, _names_in(path)) if path.is_dir() else (path.parent, {path.name: []})
    files: Dict[str, SafetensorsFile] = {}
    for name, tensors in names.items():
        try:
            files[name] = SafetensorsFile(folder / name)
        except OSError as exc:
            raise UserError(f"{name}: cannot be read: {exc.strerror}") from exc
        except FormatError as exc:
            raise UserError(f"{name}: {exc}") from exc
        missing = [tensor for tensor in tensors if tensor not in files[name].header.entries]
        if missing:
            raise UserError(f"{name}: has no {missing[0]}, which {INDEX_FILE} says it has")
    return files


def _names_in(folder: Path) -> Dict[str, List[str]]:
    """File names -> names of tensors that they must have. Raises UserError: the folder holds no weights."""
    if (folder / INDEX_FILE).exists():
        try:
            index: Any = json.loads((folder / INDEX_FILE).read_text("utf-8"))
            names: Dict[str, List[str]] = {}
            for tensor, file in index["weight_map"].items():
                if os.path.basename(file) != file:
                    raise ValueError(file)
                names.setdefault(file, []).append(tensor)
        except OSError as exc:
            raise UserError(f"{INDEX_FILE}: cannot be read: {exc.strerror}") from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise UserError(f"{INDEX_FILE}: has no weight_map of tensors and files in this folder") from exc
        return names
    if (folder / WEIGHTS_FILE).exists():
        return {WEIGHTS_FILE: []}
    if (folder / "manifest.json").exists():
        raise UserError(
            "this is a checkpoint: resume=PATH continues it; python -m trainer.checkpoint export writes its weights"
        )
    raise UserError(f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; other formats, such as .bin, are not read")
