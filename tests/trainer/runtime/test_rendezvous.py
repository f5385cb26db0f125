"""The store of the ranks when rank 0, which hosts it, has ended."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.grounds.trainings import world_of_one
from trainer.errors import NetworkError
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import Rendezvous

USES: dict[str, Callable[[Rendezvous], Any]] = {
    "check_all": lambda ranks: ranks.check_all("device", "", "cpu"),
    "gather": lambda ranks: ranks.gather("place", 1),
    "vendor_store_address": lambda ranks: ranks.vendor_store_address(),
}


@pytest.mark.parametrize("use", USES)
def test_lost_connection_to_rank_0_is_an_error_of_the_network_and_not_a_timeout(use: str) -> None:
    env = {**world_of_one(), "WORLD_SIZE": "2"}
    first = [Rendezvous.open(Rank.from_env(env), env, 60.0)]
    second = Rendezvous.open(Rank.from_env({**env, "RANK": "1"}), env, 60.0)
    first.clear()
    gc.collect()
    with pytest.raises(NetworkError, match=r"rank 1 lost the connection to rank 0, at 127\.0\.0\.1:\d+: ") as raised:
        USES[use](second)
    assert "within" not in str(raised.value).partition("\n")[0]
