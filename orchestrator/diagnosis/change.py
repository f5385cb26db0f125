"""The part of a remedy that orch can make itself, in a run that proves it (docs/decisions/071)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

CHANGED_CALLS = "ORCH_CHANGED_CALLS"
"""The variable from which trainer/scripts takes the calls to change."""


@dataclass(frozen=True)
class Call:
    """Arguments that a function of a library gets in every call of a program, whatever the program passes."""

    module: str
    function: str
    """Its name in the module, such as Class.method."""
    arguments: Mapping[str, Any]
    """In JSON: null stands for the default of the parameter, {"seconds": N} for a time span."""


@dataclass(frozen=True)
class Change:
    """A change of the variables, of a library's call, or of a setting of the shared trainer."""

    text: str
    """The change in the words of a remedy."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """The values of environment variables; None takes the variable away."""
    call: Call | None = None
    """The change of a call, for Python programs of the user."""
    setting: str = ""
    """The same change for the shared trainer."""

    @property
    def call_variables(self) -> dict[str, str]:
        return {} if self.call is None else {CHANGED_CALLS: json.dumps([asdict(self.call)])}


def unset(*names: str) -> Change:
    return Change(f"unset {' '.join(names)}", dict.fromkeys(names))


def variables(**values: str) -> Change:
    return Change(" ".join(f"{name}={value}" for name, value in values.items()), values)


def call(text: str, module: str, function: str, setting: str = "", **arguments: object) -> Change:
    return Change(text, call=Call(module, function, arguments), setting=setting)


_WAIT_S = 1800
_GROUP = ("torch.distributed.distributed_c10d", "init_process_group")
_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel.__init__")
_DEEPSPEED = "deepspeed.runtime.config"

FIND_UNUSED = call(
    "DistributedDataParallel(find_unused_parameters=True)",
    *_DDP,
    "find_unused_parameters=true",
    find_unused_parameters=True,
)
NO_DEVICE_IDS = call("DistributedDataParallel(device_ids=None)", *_DDP, device_ids=None, output_device=None)
GLOO = call("init_process_group(backend='gloo')", *_GROUP, backend="gloo")
LONGER_TIMEOUT = call(
    f"init_process_group(timeout={_WAIT_S} s)", *_GROUP, f"ddp_timeout={_WAIT_S}", timeout={"seconds": _WAIT_S}
)
NO_WORKERS = call(
    "DataLoader(num_workers=0)",
    "torch.utils.data.dataloader",
    "DataLoader.__init__",
    "workers=0",
    num_workers=0,
    prefetch_factor=None,
    persistent_workers=None,
    multiprocessing_context=None,
)
# Without the size in param_dict, DeepSpeed computes it.
NO_TOTAL_BATCH = call("DeepSpeed without train_batch_size", _DEEPSPEED, "get_train_batch_size", param_dict={})
MICRO_BATCH = call(
    "DeepSpeed with train_micro_batch_size_per_gpu: 1",
    _DEEPSPEED,
    "get_train_micro_batch_size_per_gpu",
    param_dict={"train_micro_batch_size_per_gpu": 1},
)
