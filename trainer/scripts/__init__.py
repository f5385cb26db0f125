"""
Changes to other packages' modules, made when a user's script imports them, so that it trains without CUDA too.

`site` makes Python load this package at its start, under another name than `trainer`, which may be a module of the user.
This module only waits for imports; the changes are in one module per package and loaded when needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; most scripts do not import typing at their start
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Mapping, Sequence, Set

AFTER = {
    "torch": "gcu.migrate_with_torch",
    "torch_gcu": "gcu.migrate_with_torch_gcu",
    "torch.optim.optimizer": "progress.count_steps",
    "torch.distributed.distributed_c10d": "lost_errors.watch_groups",
    "torch.distributed.rendezvous": "joined.refuse_own_host",
    "torch_gcu.distributed.distributed_c10d": "lost_errors.watch_groups",
    "torch.serialization": "saves.watch_files",
    "torch.distributed.checkpoint.filesystem": "saves.watch_distributed_checkpoint",
    "torch.nn.parallel.distributed": "replicas.remember_models",
    "deepspeed.ops": "deepspeed.need_no_compiler",
    "deepspeed.runtime.engine": "saves.watch_deepspeed",
    "accelerate.state": "accelerate.share_the_cpu",
    "accelerate.accelerator": "saves.watch_accelerator",
    "transformers.trainer": "saves.watch_trainer",
    "transformers.trainer_callback": "saves.follow_trainer",
    "lightning.pytorch.trainer.trainer": "saves.watch_lightning",
    "lightning.pytorch.trainer.call": "saves.follow_lightning",
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector": "saves.watch_losses_of_lightning",
    "lightning.pytorch.loops.evaluation_loop": "saves.watch_evaluations_of_lightning",
    "lightning.fabric.fabric": "saves.watch_fabric",
    "pytorch_lightning.trainer.trainer": "saves.watch_lightning",
    "pytorch_lightning.trainer.call": "saves.follow_lightning",
    "pytorch_lightning.trainer.connectors.logger_connector.logger_connector": "saves.watch_losses_of_lightning",
    "pytorch_lightning.loops.evaluation_loop": "saves.watch_evaluations_of_lightning",
    "lightning_fabric.fabric": "saves.watch_fabric",
    "mpi4py.MPI": "joined.warn_of_mpi_alone",
    "ray._private.worker": "joined.warn_of_ray_alone",
    "tensorflow.python.distribute.collective_all_reduce_strategy": "joined.refuse_tensorflow_alone",
    "mmengine.device.utils": "mmengine.find_device",
    "mmengine.dist.utils": "mmengine.join_ranks",
    "mmengine.dist.dist": "mmengine.change_collectives",
    "mmengine.model.wrappers.distributed": "mmengine.take_device_ids",
    "mmengine.runner.checkpoint": "mmengine.load_to_the_cpu",
    "mmengine.runner.runner": "saves.watch_runner",
    "mmengine.runner.loops": "saves.watch_loops",
    "mmengine.optim.optimizer.optimizer_wrapper": "mmengine.take_steps",
}
"""Imported module -> the function of this package that is called with it."""
CHANGED_CALLS = "ORCH_CHANGED_CALLS"
"""The variable that `orch diagnose --prove` sets: calls whose arguments are changed, with the modules of their functions, as JSON."""


class AfterImport:
    """A finder that delegates to the other finders and calls a function after the module was executed."""

    def __init__(self, functions: Mapping[str, str]) -> None:
        self.functions = functions
        self.looking_for: Set[str] = set()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 -- importlib's
        target: ModuleType | None = None,  # noqa: ARG002 -- importlib's
    ) -> ModuleSpec | None:
        if name not in self.functions or name in self.looking_for:
            return None
        self.looking_for.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking_for.discard(name)
        if spec is not None and spec.loader is not None:
            self.call_after(spec)
        return spec

    def call_after(self, spec: ModuleSpec) -> None:
        """Wrap exec_module of the module's own loader, so that `__loader__` stays the expected one."""
        assert spec.loader is not None, "no namespace package"
        execute = spec.loader.exec_module
        module_name, function_name = self.functions[spec.name].split(".")

        def exec_module(module: ModuleType) -> None:
            execute(module)
            getattr(importlib.import_module(f"{__name__}.{module_name}"), function_name)(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]


def install() -> None:
    """Install the finder; imports none of the modules."""
    functions = dict(AFTER)
    if CHANGED_CALLS in os.environ:
        import json  # only runs that try a remedy have the variable

        functions.update((call["module"], "calls.change") for call in json.loads(os.environ[CHANGED_CALLS]))
    sys.meta_path.insert(0, AfterImport(functions))
    if "RANK" in os.environ and "PET_NNODES" in os.environ:  # with --per-node, perhaps started by hand
        importlib.import_module(f"{__name__}.lost_errors").watch()
