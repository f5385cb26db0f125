"""A whole state as the one shard that rank 0 writes. Values that safetensors does not have are in it serialised, under the key REST."""

from __future__ import annotations

import io
from typing import Any, List, Mapping, Tuple

import torch

from trainer.parallel.base import Strategy
from trainer.parallel.parts import LocalState, Part, described, first_names
from trainer.safetensors import DTYPES
from trainer.state_keys import MODEL, REST


def whole_state(saved: Mapping[str, Any], strategy: Strategy) -> Tuple[LocalState, List[str]]:
    """The result of Strategy.state() on rank 0 as the state of one rank, and the keys that are under REST."""
    moments, aliases = saved["moments"], first_names(strategy.unwrapped_model)
    values = {f"{MODEL}/{name}": value for name, value in saved["model"].items() if name not in aliases}
    for name, of_name in moments.items():
        values.update({f"{kind}/{name}": value for kind, value in of_name.items() if kind != "step"})
    rest = {key: _on_cpu(value) for key, value in values.items() if not _is_plain_tensor(value)}
    parts = [Part(key, tuple(value.shape), 0, value) for key, value in values.items() if key not in rest]
    if rest:
        written = io.BytesIO()
        torch.save(rest, written)
        content = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
        parts.append(Part(REST, tuple(content.shape), 0, content))
    steps, further = described(moments)
    return LocalState(parts, steps, saved.get("scaler", {}), aliases, further), list(rest)


def _is_plain_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in DTYPES and bool(value.numel())


def _on_cpu(value: Any) -> Any:  # noqa: ANN401 -- the extra state of any module
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
