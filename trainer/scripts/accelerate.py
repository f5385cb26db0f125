"""accelerate, and with it Hugging Face's Trainer, on a node without a device that it knows."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from .devices import accelerator_of_script, warn_cpu_only


def share_the_cpu(module: Any) -> None:  # accelerate.state
    """Ranks train together on the CPU, as with Accelerator(cpu=True) or --use_cpu. Otherwise every rank would train alone."""
    state = module.PartialState
    construct = state.__init__

    @functools.wraps(construct)
    def construct_on_the_cpu(self: Any, cpu: bool = False, **kwargs: Any) -> None:  # noqa: FBT001, FBT002 -- theirs
        is_first = not state._shared_state  # later instances only share it
        if is_first and not cpu and "LOCAL_RANK" in os.environ and str(getattr(self, "default_device", "")) == "cpu":
            cpu = True
            accelerator = accelerator_of_script()
            if accelerator.name == "cpu":  # a card unknown to accelerate is reported at the first step
                warn_cpu_only("accelerate", accelerator)
        construct(self, cpu, **kwargs)
        if is_first and os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
            # accelerate lets DeepSpeed know the group of the ranks only without `cpu`. Otherwise zero.Init counts one rank, and
            # a batch size of the configuration, also "auto", does not match.
            group, comm = importlib.import_module("torch.distributed"), importlib.import_module("deepspeed.comm")
            if group.is_initialized() and not comm.is_initialized():
                comm.init_distributed(auto_mpi_discovery=False)  # takes the group that exists

    state.__init__ = construct_on_the_cpu
