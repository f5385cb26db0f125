"""Folders in which programs leave files: they are not part of the code, whether it is sent to the nodes or compared on them."""

from __future__ import annotations

import os

from orchestrator.node.system.fast_stdlib import suppress

CACHES = frozenset(("__pycache__", "node_modules", "__pypackages__"))
RESULTS = frozenset(
    ("outputs", "output", "work_dirs", "wandb", "runs", "checkpoints", "lightning_logs", "tb_logs", "mlruns")
)  # of Hydra, transformers, MMEngine, Weights & Biases, TensorBoard, Lightning and MLflow
PROGRAMS = (".py", ".sh")
WORKDIR = ("bundles", "runs")
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # one of them is in each virtual environment


def reason_not_code(path: str) -> str:
    """The reason why the files in a folder are no code; empty if they may be."""
    name = os.path.basename(path)
    if name in CACHES:
        return "caches"
    if any(os.path.lexists(os.path.join(path, file)) for file in ENVIRONMENT):
        return "virtual environments"
    if is_of_orch(path):
        return "files of orch"
    return "results" if is_results(name, path) else ""


def is_results(name: str, path: str) -> bool:
    """Return whether a folder of this name holds results: not one with programs, as a package of Python."""
    if name not in RESULTS:
        return False
    with suppress(OSError), os.scandir(path) as entries:
        return not any(entry.name.endswith(PROGRAMS) for entry in entries)
    return True


def is_of_orch(path: str) -> bool:
    """Return whether a folder is `bundles` or `runs` of a workdir: orch writes to them during a launch."""
    parent, name = os.path.split(path)
    return name in WORKDIR and all(os.path.isdir(os.path.join(parent, folder)) for folder in WORKDIR)
