"""A script's rank reports its process group; nothing if ranks may be joined in another way."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.errors import NO_RETRY
from trainer.scripts import devices, joined
from trainer.scripts.joined import (
    JOINING_LIBRARIES,
    group_of,
    refuse_own_host,
    refuse_tensorflow_alone,
    warn_of_mpi_alone,
    warn_of_ray_alone,
)


def _distributed(rank: int = 0, size: int = 0) -> Any:
    return SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: size > 0, get_rank=lambda: rank, get_world_size=lambda: size
    )


def test_number_and_size_of_the_group_are_those_of_torch() -> None:
    assert group_of(_distributed(3, 8)) == [3, 8]


def test_rank_without_a_group_is_alone() -> None:
    assert torch.distributed.is_available()
    assert group_of(_distributed()) == [0, 1]


def test_group_of_horovod_is_that_of_its_world_until_after_its_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "_HOROVOD", [])
    horovod = SimpleNamespace(is_initialized=lambda: False, rank=lambda: 5, size=lambda: 8)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=horovod))
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    assert group_of(_distributed()) is None  # it may still join the ranks
    horovod.is_initialized = lambda: True
    assert group_of(_distributed()) == [5, 8]
    horovod.is_initialized = lambda: False
    assert group_of(_distributed()) == [5, 8]


@pytest.mark.parametrize("name", [*JOINING_LIBRARIES, "ORCH_SEPARATE", "TORCHELASTIC_RESTART_COUNT", "mpi4py.MPI"])
def test_rank_that_may_be_joined_otherwise_or_is_meant_to_be_alone_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.isupper():
        monkeypatch.setenv(name, "1")
    else:
        world = SimpleNamespace(Get_size=lambda: 2)
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(COMM_WORLD=world))
    assert group_of(_distributed()) is None


def test_mpi_world_of_one_rank_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimpleNamespace(Get_size=lambda: 1)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=world))
    assert group_of(_distributed()) == [0, 1]


@pytest.mark.parametrize(("size", "ranks", "warns"), [(1, "2", True), (2, "2", False), (1, "1", False)])
def test_rank_that_mpi_takes_for_the_only_one_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: int, ranks: str, *, warns: bool
) -> None:
    devices.warn.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", ranks)
    warn_of_mpi_alone(SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: size)))
    assert ("for MPI this rank is rank 0 of 1, although the launch has 2 ranks" in capsys.readouterr().err) is warns


@pytest.mark.parametrize(
    ("is_head", "variables", "warns"),
    [
        (True, {"WORLD_SIZE": "2", "RANK": "1"}, True),
        (True, {"NNODES": "2", "NODE_RANK": "1"}, True),
        (True, {"NNODES": "2", "NODE_RANK": "0"}, False),  # the others may only serve it
        (True, {"WORLD_SIZE": "2", "RANK": "0", "NODE_RANK": "0"}, False),
        (False, {"NNODES": "2", "NODE_RANK": "1"}, False),
        (True, {"NNODES": "2", "NODE_RANK": "1", "ORCH_SEPARATE": "1"}, False),
    ],
)
def test_ray_that_starts_a_cluster_in_each_process_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    *,
    is_head: bool,
    warns: bool,
) -> None:
    devices.warn.cache_clear()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    worker = SimpleNamespace(init=lambda *words: words, _global_node=None)
    warn_of_ray_alone(worker)
    assert worker.init("auto") == ("auto",)
    worker._global_node = SimpleNamespace(is_head=lambda: is_head)  # ray's name
    worker.init()
    assert ("a cluster for this process alone, and the launch has 2" in capsys.readouterr().err) is warns


def test_tensorflow_without_a_list_of_workers_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Strategy:
        def __init__(self, cluster_resolver: object = None, communication_options: object = None) -> None:
            self.options = cluster_resolver, communication_options

    class Experimental(Strategy):
        def __init__(self) -> None:
            super().__init__(communication_options="ring")

    refuse_tensorflow_alone(SimpleNamespace(CollectiveAllReduceStrategy=Strategy))
    assert Experimental().options == (None, "ring")
    monkeypatch.setenv("NNODES", "2")
    assert Strategy("resolver", "ring").options == ("resolver", "ring")
    for kind in (Strategy, Experimental):
        with pytest.raises(SystemExit) as ended:
            kind()
        assert ended.value.code == NO_RETRY
    assert "trains in this process alone, and the launch has 2: set TF_CONFIG" in capsys.readouterr().err
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert Strategy().options == (None, None)


@pytest.mark.parametrize(
    ("changes", "hostname", "world_size", "is_refused"),
    [
        ({}, "localhost", 4, True),
        ({}, "127.0.0.1", 4, True),
        ({}, "10.0.0.1", 4, False),
        ({}, "localhost", 2, False),  # trains on this node alone, which is found by its group
        ({"ORCH_NODE_RANK": "0"}, "localhost", 4, False),
        ({"ORCH_NODE_ADDRESSES": "127.0.0.1,127.0.0.2"}, "localhost", 4, False),
        ({"ORCH_SEPARATE": "1"}, "localhost", 4, False),
    ],
)
def test_rank_whose_program_replaces_the_address_of_rank_0_by_its_own_ends(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    hostname: str,
    world_size: int,
    *,
    is_refused: bool,
) -> None:
    """Tutorials set MASTER_ADDR to localhost; the ranks of further nodes would wait for half an hour."""
    given = {
        "ORCH_NODE": "n1",
        "ORCH_NODE_RANK": "1",
        "ORCH_NODE_ADDRESSES": "10.0.0.1,10.0.0.2",
        "LOCAL_WORLD_SIZE": "2",
    }
    for name, value in {**given, **changes}.items():
        monkeypatch.setenv(name, value)
    module = SimpleNamespace(_create_c10d_store=lambda *_: "store")
    refuse_own_host(module)
    if not is_refused:
        assert module._create_c10d_store(hostname, 29500, 2, world_size) == "store"
        return
    with pytest.raises(SystemExit) as exit_:
        module._create_c10d_store(hostname, 29500, 2, world_size)
    assert exit_.value.code == NO_RETRY
    assert (
        f"n1 looks for rank 0 at {hostname}, which is n1 itself, but rank 0 is on another node"
        in capsys.readouterr().err
    )
