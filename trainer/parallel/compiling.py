"""torch.compile for the blocks of a model: equal blocks share one graph, whose compilation does not grow with their number."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Sequence

import torch

OTHER_GRAPHS = 8
"""torch's own limit of graphs per function; all blocks are one function to it, Module._call_impl."""


def compile_blocks(
    model: torch.nn.Module,
    blocks: Sequence[torch.nn.Module],
    ends: Sequence[Sequence[torch.nn.Module]],
    *,
    inside_hooks: bool = False,
) -> None:
    """
    Compile each block by itself at its first call, and the last of the ends: the head, with its loss. Without blocks, the whole model.

    What strategies do around a block, such as gathering the weights, stays outside of the graph. torch would cut graphs
    at the buckets of DistributedDataParallel; gradients of a block arrive together, and those of earlier blocks later, so blocks
    need no cut. With `inside_hooks`, hooks of the modules stay outside of the graph, too.
    """
    if blocks:
        settings: Any = importlib.import_module("torch._dynamo").config
        settings.optimize_ddp = False
        # Beyond the limit, torch runs blocks uncompiled. Blocks of other shapes have graphs of their own, before torch 2.5 all.
        settings.cache_size_limit = max(settings.cache_size_limit, OTHER_GRAPHS + 2 * len(blocks))
    head = [group[-1] for group in ends[-1:]]
    for part in (*blocks, *head) if blocks else (model,):
        if part.forward.__module__.startswith("torch."):
            part.forward = _called_by_function(part.forward)
        if inside_hooks:
            compiler: Any = torch  # compile() is newer than torch 1.10
            part.forward = compiler.compile(part.forward)
        else:
            part.compile()


def _called_by_function(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Give torch.compile a function to begin with: it skips torch's own, and would compile nothing of an nn.Sequential."""

    def called(*inputs: Any, **named: Any) -> object:
        return forward(*inputs, **named)

    return called
