"""In a later attempt, the ranks of a plain script have loaded the same files, or they are ended or warned of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from trainer.runtime.rank import Rank
from trainer.scripts import devices
from trainer.scripts.loads import Loads

Start = Callable[[int], Loads]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a rank of two nodes of two ranks, which have folders of their own and a store in common."""
    store = HashStore()
    devices.warn.cache_clear()

    def started(number: int) -> Loads:
        node, run_dir = f"n{number // 2}", tmp_path / f"n{number // 2}"
        run_dir.mkdir(exist_ok=True)
        rank = Rank(
            number, number % 2, 4, launched=True, node=node, run_dir=run_dir, progress_dir=None, is_retry=True, nodes=2
        )
        return Loads(rank, lambda: store)

    return started


def _resume(loads: Loads, folder: Path) -> None:
    loads.files, loads.resumed_from = 1, str(folder / "snapshot.pt")
    (folder / "snapshot.pt").touch()


def test_rank_without_the_file_that_all_ranks_of_the_first_node_have_resumed_from_ends(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's own tutorial: rank 0 saves to a relative path, and each rank resumes if it finds the file."""
    ranks = [start(number) for number in range(4)]
    for loads in ranks[:2]:
        _resume(loads, tmp_path / "n0")
    for loads in ranks:
        loads.publish()
    ranks[0].compare()
    ranks[1].compare()
    with pytest.raises(SystemExit) as exit_:
        ranks[3].compare()
    assert exit_.value.code == 93
    text = "error: rank 0 on n0 has resumed from snapshot.pt, which is missing on n1: the ranks here have begun at step 0; save to a folder"
    assert text in capsys.readouterr().err


def test_rank_0_that_alone_has_resumed_is_a_warning_as_it_may_broadcast(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [start(number) for number in range(4)]
    _resume(ranks[0], tmp_path / "n0")
    for loads in ranks:
        loads.publish()
    for loads in ranks:
        loads.compare()
    assert capsys.readouterr().err.count("which is missing on n1: unless rank 0 gives its state to the others") == 1


@pytest.mark.parametrize("has_it", ["a file of the same name", "another file", "an absolute path"])
def test_ranks_that_may_have_the_same_state_are_left_alone(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_it: str
) -> None:
    ranks = [start(number) for number in range(4)]
    for loads in ranks[:2]:
        _resume(loads, tmp_path if has_it == "an absolute path" else tmp_path / "n0")
    if has_it == "a file of the same name":
        (tmp_path / "n1" / "snapshot.pt").touch()
    elif has_it == "another file":
        ranks[2].files = ranks[3].files = 1
    for loads in ranks:
        loads.publish()
    for loads in ranks:
        loads.compare()
    assert capsys.readouterr().err == ""
