"""TG1 utils/data/distributed.py: torch's sampler, but number of ranks and rank come from the vendor's process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data.distributed

from ... import distributed as dist
from .. import data  # noqa: F401 -- the package must be complete before the group is queried


class DistributedSampler(torch.utils.data.distributed.DistributedSampler):  # type: ignore[type-arg]
    """With torch's argument names."""

    def __init__(self, dataset: Any, num_replicas: Any = None, rank: Any = None, **more: Any) -> None:
        num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        super().__init__(dataset, num_replicas, dist.get_rank() if rank is None else rank, **more)
