"""The record of rank 0: results by round, ranks that are left out, and the file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.comm import record as record_module
from trainer.comm.config import load_config
from trainer.comm.groups import Round
from trainer.comm.measure import Measured
from trainer.comm.record import Record, rank_rows
from trainer.comm.results import UNSUPPORTED
from trainer.io import replace_text

SOUND = [asdict(Measured(1024, [1e-3]))]


def _failed(error: str) -> list[dict[str, object]]:
    return [asdict(Measured(1024, error=error))]


def _record(path: Path) -> Record:
    reports = {rank: {"node": f"n{rank}", "local_rank": 0, "test": {"error": ""}} for rank in range(6)}
    return Record(path, load_config(["groups=pairs"]), rank_rows(reports, 6), {"backend": "gloo"})


def _pairs(*groups: tuple[int, int]) -> Round:
    return Round("pairs", "send-recv", groups)


def test_file_has_the_results_of_all_rounds(tmp_path: Path) -> None:
    record = _record(tmp_path / "comm.json")
    assert record.add(_pairs((0, 1)), [(0, 1)], {0: SOUND, 1: SOUND}) == {"excluded": [], "has_failed": False}
    assert len(json.loads(record.path.read_text())["results"]) == 1
    record.add(_pairs((0, 2)), [(0, 2)], {0: SOUND, 2: SOUND})
    record.write()
    written = json.loads(record.path.read_text())
    assert [result["ranks"] for result in written["results"]] == [[0, 1], [0, 2]]
    assert (written["backend"], len(written["ranks"]), record.failures()) == ("gloo", 6, "")


def test_file_that_takes_long_to_write_is_written_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing takes one second of the clock, so that it happens every 20 seconds."""
    now_s = 100.0

    def replace_slowly(path: Path, text: str) -> None:
        nonlocal now_s
        now_s += 1
        replace_text(path, text)

    monkeypatch.setattr(record_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(record_module, "replace_text", replace_slowly)
    record, written = _record(tmp_path / "comm.json"), []
    for pause_s in (0, 10, 11):
        now_s += pause_s
        record.add(_pairs((0, 1)), [(0, 1)], {0: SOUND, 1: SOUND})
        written.append(len(json.loads(record.path.read_text())["results"]))
    assert written == [1, 1, 3]


def test_silent_rank_is_left_out_at_once(tmp_path: Path) -> None:
    verdict = _record(tmp_path / "comm.json").add(_pairs((0, 1)), [(0, 1)], {0: SOUND})
    assert verdict == {"excluded": [1], "has_failed": True}


def test_rank_that_fails_with_three_others_is_left_out_and_they_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _record(tmp_path / "comm.json")
    record.add(_pairs((1, 2), (3, 4)), [(1, 2), (3, 4)], dict.fromkeys((1, 2, 3, 4), SOUND))
    for partner in (1, 2, 3):
        verdict = record.add(_pairs((partner, 5)), [(partner, 5)], dict.fromkeys((partner, 5), _failed("no route")))
        assert verdict == {"excluded": [5] if partner == 3 else [], "has_failed": True}
    assert "rank 5 is left out from now on: 3 groups with it failed, none succeeded" in capsys.readouterr().out
    assert record.failures().startswith("3 measurements failed; the first: op=send-recv groups=pairs ranks=1,5 ")


def test_operation_that_the_backend_lacks_leaves_the_group_usable(tmp_path: Path) -> None:
    record = _record(tmp_path / "comm.json")
    lacking = _failed(f"{UNSUPPORTED}: no reduce_scatter")
    assert not record.add(_pairs((0, 1)), [(0, 1)], {0: lacking, 1: lacking})["has_failed"]
    assert "no reduce_scatter" in record.failures()


def test_rank_that_has_not_come_has_an_error() -> None:
    [first, second] = rank_rows({0: {"node": "n0", "local_rank": 0, "test": {"error": "", "gemm_tflops": 1.0}}}, 2)
    assert first == {"rank": 0, "node": "n0", "local_rank": 0, "error": "", "gemm_tflops": 1.0}
    assert second["error"] == "it did not start in time"
