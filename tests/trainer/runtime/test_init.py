"""Joining a group after one that failed."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group  # type: ignore[attr-defined]  # not in its __all__

from tests.grounds.trainings import world_of_one
from trainer.errors import NetworkError
from trainer.runtime.accelerators import Cpu
from trainer.runtime.init import eager_start, join
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import Rendezvous

SHORT = timedelta(milliseconds=50)


def test_group_has_the_same_name_after_one_that_failed() -> None:
    """The name is part of the keys by which the ranks find each other; ranks of other groups have had no failure."""
    keys: list[set[str]] = []
    for fails_first in (False, True):
        store = HashStore()
        rank = Rank.from_env(world_of_one())
        rendezvous = Rendezvous(store, rank, 1.0, "127.0.0.1:1", agent_hosts_store=False)
        if fails_first:
            with pytest.raises(NetworkError, match="cannot join the group"):
                join(Cpu(torch), rendezvous, "failing", [0, 1], timeout=SHORT)
        join(Cpu(torch), rendezvous, "group", [0], timeout=timedelta(seconds=30))
        destroy_process_group()
        keys.append({key for key in store.list_keys() if "group/" in key})
    assert keys[0]
    assert keys[0] == keys[1]


def test_group_on_cuda_is_started_with_the_device_and_others_without() -> None:
    cpu, device = Cpu(torch), torch.device("cpu")
    assert eager_start(cpu, device) == {}
    takes_it = "device_id" in inspect.signature(torch.distributed.init_process_group).parameters
    assert eager_start(cpu.changed(name="cuda"), device) == ({"device_id": device} if takes_it else {})
