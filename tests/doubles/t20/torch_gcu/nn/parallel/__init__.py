"""TG1 nn/parallel/distributed.py: the vendor's own DistributedDataParallel."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import torch

from tests.doubles.contract import ContractError, record_call

from ... import device_count
from ... import distributed as dist


class DistributedDataParallel(torch.nn.Module):
    """Averages the gradients at the end of backward(); no buckets, so their order cannot matter."""

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *,
        broadcast_buffers: bool = True,  # in every pass; the trainer's model has none
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        super().__init__()
        _check(module, device_ids, output_device, as_views=gradient_as_bucket_view)
        self.module, self._device_ids = module, device_ids
        self._may_miss, self._in_sync, self._is_queued = find_unused_parameters, True, False
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)
        parameters: List[Any] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.register_hook(self._after_backward)

    def forward(self, *inputs: Any, **more: Any) -> Any:
        if self._device_ids:  # its scatter moves the inputs to that card
            card = torch.device("xla", self._device_ids[0])
            inputs = tuple(value.to(card) if isinstance(value, torch.Tensor) else value for value in inputs)
        return self.module(*inputs, **more)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self._in_sync = False
        try:
            yield
        finally:
            self._in_sync = True

    def register_comm_hook(self, *_: Any) -> None:
        raise RuntimeError("dtu not support dist._register_comm_hook")

    def _after_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._in_sync and not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average)
        return gradient

    def _average(self) -> None:
        self._is_queued = False
        parameters: List[Any] = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                if not self._may_miss:
                    raise ContractError(
                        "a parameter took no part in the loss: the vendor's reducer waits for it forever"
                    )
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(dist.get_world_size())
            dist.all_reduce(parameter.grad)


def _check(module: torch.nn.Module, device_ids: Any, output_device: Any, *, as_views: bool) -> None:
    if device_ids is not None and len(device_ids) > 1:
        raise RuntimeError("device_ids can only be None or contain a single element.")
    devices = {parameter.device for parameter in module.parameters()}
    if {device.type for device in devices} == {"cpu"}:
        assert not (device_ids or output_device), (  # noqa: PT018
            "DistributedDataParallel device_ids and output_device arguments only work with single-device GPU modules, "
            f"but got device_ids {device_ids}, output_device {output_device}, and module parameters {devices}."
        )
    elif device_ids is None and device_count() > 1:
        # `_get_all_device_indices()`: it makes a replica on every card, in every rank.
        raise ContractError("device_ids=None takes all cards of the node in every rank: MZ passes [local_rank]")
    if devices != {torch.device("cpu")} and as_views:
        raise RuntimeError(
            "dtu not support `gradient_as_bucket_view` set to Trueplease set gradient_as_bucket_view to False"
        )
    record_call(f"DistributedDataParallel {device_ids} {' '.join(sorted(map(str, devices)))}")
