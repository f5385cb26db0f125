"""Operations for whose result the host of a card would wait."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")
"""Operations for whose result the host waits."""


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """The names of the operations within the block for which the host of a card would wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.partition("::")[2]  # torch's own tools use it
        if name.startswith(READS):
            self.found.append(name)
        return function(*args, **(kwargs or {}))
