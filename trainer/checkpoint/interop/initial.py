"""Weights to start from, init=PATH: read by rank 0 and sent to the others, as those of a checkpoint."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Tuple

import torch

from trainer.checkpoint.interop import dcp
from trainer.checkpoint.interop.dcp import Weight
from trainer.checkpoint.load.whole import load_whole
from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.errors import UserError
from trainer.io import LFS_REMEDY, is_lfs_pointer
from trainer.optim.optimizer import whole_shape
from trainer.parallel.base import Strategy
from trainer.parallel.parts import tied_names
from trainer.runtime.group import Group
from trainer.safetensors import KINDS, FormatError, SafetensorsFile
from trainer.state_keys import MODEL
from trainer.tasks.base import Task
from trainer.tasks.lora import frozen_weights
from trainer.tensors import local_elements
from trainer.text import gigabytes

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
NAMED_AT_MOST = 3
READ_BYTES = 1 << 20


def load_initial(path: Path, strategy: Strategy, task: Task, group: Group) -> None:
    """
    Load the weights at `path` into the model; only rank 0 reads files. Beside adapters, only the frozen weights.

    Raises:
        UserError: on all ranks alike; there are none, they are not those of this model, or they have NaN or infinite values.
    """
    problem, state, model = "", None, strategy.unwrapped_model
    tensors: Dict[str, torch.Tensor] = {}
    frozen = frozen_weights(model)
    if group.rank.is_main:
        try:
            shapes = {name: tuple(whole_shape(weight)) for name, weight in frozen.items()} or shapes_of(model)
            tensors = read_weights(path, shapes, task, tied_names(model))
            state = {"model": tensors, "moments": {}}
        except UserError as exc:
            problem = f"init={path}: {exc}"
        except OSError as exc:  # of is_dir() and exists(): no permission, too long
            problem = f"init={path}: cannot be read: {exc.strerror}"
    problem = group.broadcast_bytes(problem.encode()).decode()
    if problem:
        raise UserError.agreed(problem)
    if frozen:
        with torch.no_grad():
            for name, weight in frozen.items():
                strategy.put(weight, functools.partial(tensors.__getitem__, name))
        # of weights that DeepSpeed has split, rank 0 has the whole in the files
        is_split = any(hasattr(weight, "ds_id") for weight in frozen.values())
        held = tensors if is_split else {name: local_elements(weight) for name, weight in frozen.items()}
        _refuse_infinite(path, held, group)
        return
    load_whole(group, state, strategy, f"init={path}")
    held = {
        part.key.partition("/")[2]: part.tensor
        for part in strategy.local_state().parts
        if part.key.startswith(f"{MODEL}/")
    }
    _refuse_infinite(path, {name: tensor for name, tensor in held.items() if name in strategy.sizes}, group)


def _refuse_infinite(path: Path, held: Mapping[str, torch.Tensor], group: Group) -> None:
    """Raise UserError on all ranks for a NaN or infinite value in the weights that one of them holds: every loss would be NaN."""
    mine = [name for name, tensor in held.items() if not _is_finite(tensor.detach())]
    names = sorted({name for found in group.gather(mine) for name in found})
    if names:
        more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
        raise UserError.agreed(
            f"init={path}: NaN or infinite values in {', '.join(names[:NAMED_AT_MOST])}{more}: the files are damaged, or the "
            "training that wrote them failed; take another copy or an earlier checkpoint"
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Without the memory of a second tensor: a NaN among the values is also their least and greatest."""
    return not tensor.numel() or all(math.isfinite(float(extreme)) for extreme in (tensor.min(), tensor.max()))


def shapes_of(model: torch.nn.Module) -> Dict[str, Tuple[int, ...]]:
    """The whole shapes of parameters and persistent buffers by name, also of a model that is sharded."""
    return {name: tuple(whole_shape(tensor)) for name, tensor in model.state_dict(keep_vars=True).items()}


def base_digest(group: Group, config: TrainConfig) -> str:
    """
    On rank 0, the digest of the weights beside which adapters are trained, or ""; a collective.
    Raises UserError: on all ranks alike; they cannot be read.
    """
    digest = problem = ""
    if group.rank.is_main and config.lora.rank and config.init:
        try:
            digest = digest_of(Path(config.init).expanduser())
        except UserError as exc:
            problem = f"init={config.init}: {exc}"
        except OSError as exc:
            problem = f"init={config.init}: cannot be read: {exc.strerror}"
    group.raise_if_any(problem)
    return digest


def digest_of(path: Path) -> str:
    """sha256 of all files of weights at `path` with their names. Raises OSError, and UserError as file_shapes()."""
    total = hashlib.sha256()
    folder = path if path.is_dir() else path.parent
    for name in sorted(_open_files(path)):
        total.update(name.encode())
        with (folder / name).open("rb") as file:
            for part in iter(lambda: file.read(READ_BYTES), b""):
                total.update(part)
    return total.hexdigest()


def read_tensors(path: Path) -> Dict[str, torch.Tensor]:
    """The tensors in the files at `path`, by name, mapped. Raises UserError: there are none; the message lacks `path`."""
    opened = _open_files(path)
    return {name: file.tensor(name) for file in opened.values() for name in file.header.entries}


def read_weights(
    path: Path, shapes: Mapping[str, Tuple[int, ...]], task: Task, tied: Mapping[str, str] = MappingProxyType({})
) -> Dict[str, torch.Tensor]:
    """
    Return the tensors of the model by name, mapped from their files, if these are of safetensors.

    Args:
        path: a safetensors file, a folder of Hugging Face, or one of torch.distributed.checkpoint.
        shapes: the shapes that the model needs.
        task: for the names that it leaves out, and for messages.
        tied: further names of tied weights -> the first, whose values are read. Files need not have the further ones.

    Raises:
        UserError: there is no such file, or a tensor is missing, foreign, or of another shape or type; the message lacks `path`.
    """
    found = _weights_at(path, shapes)
    unused = [name for name in found if any(fnmatch(name, pattern) for pattern in task.unused_weights)]
    problems = [
        f"{name} is missing, of shape {list(shapes[name])}" for name in shapes if tied.get(name, name) not in found
    ]
    for name, weight in found.items():
        if name in shapes and weight.shape != shapes[name]:
            problems.append(
                f"{weight.file}: {name} has shape {list(weight.shape)}, the model needs {list(shapes[name])}"
            )
        elif name in shapes and weight.kind not in KINDS:
            problems.append(f"{weight.file}: {name} is of type {weight.kind}: {', '.join(KINDS)} can be read")
        elif name not in shapes and name not in unused:
            problems.append(f"{weight.file}: {name} is not in the model")
    if problems:
        more = f"; and {len(problems) - NAMED_AT_MOST} more" if len(problems) > NAMED_AT_MOST else ""
        raise UserError(
            f"these are not the weights of task={task.config.task}: {'; '.join(problems[:NAMED_AT_MOST])}{more}"
        )
    read = {name: weight for name, weight in found.items() if name in shapes and name not in tied}
    log_line(
        f"starting from {path}: {len(read)} tensors, {', '.join(sorted({weight.kind for weight in read.values()}))}, "
        f"{gigabytes(sum(weight.size for weight in read.values()))}"
    )
    tensors = {name: weight.read() for name, weight in read.items()}
    return {name: tensors[tied.get(name, name)] for name in shapes}


def _weights_at(path: Path, names: Mapping[str, Any]) -> Dict[str, Weight]:
    if path.is_dir() and dcp.is_dcp(path):
        return dcp.weights_in(path, names)
    return {
        name: Weight(file, entry.kind, entry.shape, entry.end - entry.start, functools.partial(opened.tensor, name))
        for file, opened in _open_files(path).items()
        for name, entry in opened.header.entries.items()
    }


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
            raise UserError(f"{name}: {LFS_REMEDY if is_lfs_pointer(folder / name) else exc}") from exc
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
    raise UserError(_other_content(folder))


def _other_content(folder: Path) -> str:
    """Return what a folder without weights holds, and the next step."""
    if (folder / "manifest.json").exists():
        return "this is a checkpoint: resume=PATH continues it; python -m trainer.checkpoint export writes its weights"
    if any(folder.glob("step_*/manifest.json")):
        return "holds checkpoints: resume=PATH continues one; python -m trainer.checkpoint export writes the weights of the newest"
    if dcp.is_dcp(folder):
        return "folders of torch.distributed.checkpoint are not read here: adapters and --hf need safetensors"
    if any(folder.glob("*.distcp")):
        return f"has no {dcp.METADATA_FILE}, without which *.distcp cannot be read: is the copy whole?"
    return f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; other formats, such as .bin, are not read"
