"""
Fingerprints of what DistributedDataParallel keeps equal on all ranks of a script: orch compares them, and names a rank that differs.

Without a collective. If the script trains past its wrapper, the replicas differ, too; then the cause is in the progress as well.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import Any, Callable, Container, Dict, Iterable, List

FIRST = 10  # steps until the first fingerprint; the distance doubles until both limits below are kept
LARGEST_SHARE = 0.005  # of the duration of the steps that the fingerprints may take
LEAST_S = 1.0  # between two: the progress is written, and read, once a second
MODELS = "orch_models"  # the attribute with the models that were wrapped
EQUAL_HOOKS = {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook", "batched_powerSGD_hook"}
AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"  # local SGD: the replicas differ by intent

NO_SYNC = "no_sync() is on at the optimizer's step, so gradients are not averaged"
BYPASSED = "the model is called past its DistributedDataParallel wrapper, so gradients are not averaged"

Json = Dict[str, Any]

# `Any` below stands for torch, which is not imported here.


def remember_models(module: Any) -> None:
    """Remember each model that is wrapped from now on; `module` is torch.nn.parallel.distributed."""
    wrapper = module.DistributedDataParallel
    construct = wrapper.__init__
    models: List[weakref.ref[Any]] = []  # in the order in which they were wrapped, which is that of the other ranks

    @functools.wraps(construct)
    def construct_and_remember(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        models.append(weakref.ref(self))

    setattr(construct_and_remember, MODELS, models)
    wrapper.__init__ = construct_and_remember


def _wrapped_models() -> List[Any]:
    """The models that the script has wrapped."""
    module: Any = sys.modules.get("torch.nn.parallel.distributed")
    references = getattr(module.DistributedDataParallel.__init__, MODELS, ()) if module else ()
    return [model for model in (reference() for reference in references) if model is not None]


class DdpReplicas:
    """The newest fingerprints of this rank."""

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock_s, self._cpu_s = clock_s, cpu_s
        self._every = FIRST
        self._last_step, self._last_s = 0, 0.0
        self._newest: Dict[str, Dict[str, str]] = {}
        self._is_off = False  # after an error

    def before_step(self, optimizer: Any, step: int, world_size: int, *, has_gradients: bool = True) -> Json:
        """
        The values for the progress file if some are due.

        Args:
            step: the number of steps that were made, equal on all ranks. Their gradients have been averaged, and those of the next step.
            has_gradients: False: the next gradients are computed in the step itself.
        """
        if self._is_off or step % self._every or not self._last_s or world_size == 1 or _is_captured():
            if not self._last_s:
                self._last_step, self._last_s = step, self._clock_s()
            return {}
        try:
            return self._measured(optimizer, step, world_size, has_gradients=has_gradients)
        except Exception as exc:  # noqa: BLE001 -- parts of another version of torch must not end the training
            self._is_off = True
            print(f"WARNING: replicas that differ are not found: {exc!r}", file=sys.stderr)
            return {}

    def _measured(self, optimizer: Any, step: int, world_size: int, *, has_gradients: bool) -> Json:
        models = [model for model in _wrapped_models() if _keeps_equal(model, world_size)]
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        values = self._values(models, stepped if has_gradients else set(), step)
        if not values:
            return {}
        from ..runtime.fingerprint import KEPT  # imports torch

        self._newest[str(step)] = values
        while len(self._newest) > KEPT:
            del self._newest[next(iter(self._newest))]
        trained = [
            model for model in models if any(id(parameter) in stepped for parameter in model.module.parameters())
        ]
        cause = next(filter(None, map(_unsynchronised, trained)), None) if has_gradients else None
        found = {"count": world_size, "steps": self._newest}
        return {"replicas": {**found, "unsynchronised": cause} if cause else found}

    def _values(self, models: Iterable[Any], stepped: Container[int], step: int) -> Dict[str, str]:
        """
        The fingerprints; the next ones are so many steps later that they cost little.
        `stepped`: the ids of the parameters whose gradients are compared, too.
        """
        from ..runtime.fingerprint import comparable, fingerprint  # imports torch

        began_s = self._cpu_s()
        replicated = [
            parameter
            for model in models
            for name, parameter in model.module.named_parameters()
            if name not in model.parameters_to_ignore
        ]
        gradients = [parameter.grad for parameter in replicated if id(parameter) in stepped]
        tensors = {
            "parameters": comparable(replicated),
            "gradients": comparable(gradient for gradient in gradients if gradient is not None),
        }
        values = {name: fingerprint(of_name) for name, of_name in tensors.items() if of_name}
        step_s = (self._clock_s() - self._last_s) / (step - self._last_step)
        cost_s = self._cpu_s() - began_s
        while step_s > 0 and self._every * step_s < max(LEAST_S, cost_s / LARGEST_SHARE):
            self._every *= 2
        self._last_step, self._last_s = step, self._clock_s()
        return values


def _is_captured() -> bool:
    """While a CUDA graph is captured, which reading a value would end."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_available() and cuda.is_current_stream_capturing())


def _keeps_equal(model: Any, world_size: int) -> bool:
    """All ranks have a replica of this model, with equal gradients."""
    hooks = {getattr(hook, "__name__", "") for hook, _ in getattr(model, "_comm_hooks", ())}
    return model.process_group.size() == world_size and hooks <= EQUAL_HOOKS and AVERAGERS not in sys.modules


def _unsynchronised(model: Any) -> str:
    """Why the gradients of a model that is trained may not be averaged; empty if they are. A correct script may have such a moment, with equal replicas."""
    # the second one is about the last forward pass: no_sync() has ended when the step begins
    if not (model.require_backward_grad_sync and model.require_forward_param_sync):
        return NO_SYNC
    # counts forward passes that prepare the averaging; not each of them is noted, but the first ten are
    return "" if int(model._get_ddp_logging_data().get("iteration", 0)) else BYPASSED  # documented in the class
