"""The variables of --debug: more words from the communication library and from torch, for one run."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.portable.environment.variable import Origin, Variable

# DETAIL, which also compares the collectives of the ranks, ends torch 2.13 by SIGSEGV in DistributedDataParallel on gloo.
_TORCH = {
    "TORCH_DISTRIBUTED_DEBUG": ("INFO", "torch logs how DistributedDataParallel divides and waits for gradients"),
    "TORCH_CPP_LOG_LEVEL": ("INFO", "with TORCH_DISTRIBUTED_DEBUG: the log of torch's C++ code"),
}
_CUDA = {
    "NCCL_DEBUG": ("INFO", "NCCL logs its choices"),
    "NCCL_DEBUG_SUBSYS": ("INIT,NET,ENV", "start-up, network and variables; ALL writes gigabytes"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("2000", "the flight recorder of torch up to 2.8, off by default"),
    "TORCH_FR_BUFFER_SIZE": ("2000", "the flight recorder of torch from 2.9 on"),
}
_GCU = {
    "ECCL_DEBUG": ("INFO", "ECCL of the S60 logs its choices"),
    "ENFLAME_LOG_DEBUG_MOD": ("ECCL", "ECCL of the T20 logs its choices"),
}
_BY_ACCELERATOR = {"cuda": {**_TORCH, **_CUDA}, "gcu": {**_TORCH, **_GCU}, "cpu": _TORCH}


_QUIETER = {"", "NONE", "OFF", "VERSION", "WARN", "WARNING", "ERROR"}
"""Levels that log less than those of --debug."""


def debugging_variables(accelerator: str, env: Mapping[str, str]) -> list[Variable]:
    """
    The variables of --debug for one node; `auto` gets those of all accelerators.

    A value in `env`, which the user sets, wins unless it only asks for fewer words, such as NCCL_DEBUG=WARN.
    """
    variables = []
    for name, (value, reason) in _BY_ACCELERATOR.get(accelerator, {**_TORCH, **_CUDA, **_GCU}).items():
        if name == "TORCH_FR_BUFFER_SIZE" and "TORCH_NCCL_TRACE_BUFFER_SIZE" in env:
            continue  # torch from 2.9 on reads both names and prefers this one
        given = env.get(name)
        if given is None or given.upper() in _QUIETER:
            replaces = "" if given is None else f"{given} ({Origin.INVENTORY.value})"
            variables.append(Variable(name, value, Origin.FLAG, f"--debug: {reason}", replaces))
        elif given != value:
            kept = f"env: in the inventory; --debug would set {value}"
            variables.append(Variable(name, given, Origin.INVENTORY, kept))
    return variables
