"""Results from the ranks' reports: nccl-tests' bandwidths, the slowest rank's time, and the cause of a failure."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from trainer.comm.measure import Measured
from trainer.comm.results import bus_factor, line_of, results_of

LABELS = {"groups": "all", "op": "all-reduce", "dtype": "fp32"}
TIMEOUT = "RuntimeError: Timed out waiting 5000ms for recv operation to complete"


def _report(*measured: Measured) -> list[dict[str, object]]:
    return [asdict(each) for each in measured]


# The summary of github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md; sendrecv is 1 in src/sendrecv.cu.
@pytest.mark.parametrize(
    ("op", "factor"),
    [("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("broadcast", 1), ("send-recv", 1)],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 8) == pytest.approx(factor)


def test_bandwidths_come_from_the_median_of_the_slowest_ranks_times() -> None:
    reports = {0: _report(Measured(10**9, [1.0, 2.0, 3.0])), 1: _report(Measured(10**9, [2.0, 1.0, 9.0]))}
    [result] = results_of(LABELS, [0, 1], reports)
    assert (result["time_s"], result["fastest_s"], result["slowest_s"]) == (2.0, 2.0, 9.0)
    assert (result["algbw"], result["busbw"]) == (0.5, 0.5)
    assert "time_us=2000000.0 algbw=0.5 busbw=0.5" in line_of(result)


def test_wrong_results_name_their_ranks_and_keep_the_times() -> None:
    wrong = "wrong result: element 7 is 1.0, expected 2.0"
    reports = {rank: _report(Measured(4, [1.0], wrong if rank else "")) for rank in range(3)}
    [result] = results_of(LABELS, [0, 1, 2], reports)
    assert result["error"] == f"rank 1-2: {wrong}"
    assert result["time_s"] == 1.0


def test_timeouts_that_follow_from_another_ranks_error_are_left_out() -> None:
    failed = {
        0: _report(Measured(4, [1.0]), Measured(8, error=TIMEOUT)),
        1: _report(Measured(4, [1.0]), Measured(8, error="no memory")),
    }
    first, second = results_of(LABELS, [0, 1], failed)
    assert first["error"] == ""
    assert second["error"] == "rank 1: no memory"
    assert "time_s" not in second


def test_size_after_the_failure_of_one_rank_has_an_error() -> None:
    sound, failed = Measured(4, [1.0]), Measured(4, error="no memory")
    results = results_of(LABELS, [0, 1], {0: _report(sound, Measured(8, [1.0])), 1: _report(failed)})
    assert [result["error"] for result in results] == ["rank 1: no memory", "not measured by every rank"]


def test_rank_without_a_report_is_named() -> None:
    [result] = results_of(LABELS, [0, 1], {0: _report(Measured(4, error=TIMEOUT))})
    assert result["error"] == "rank 1: no answer"
    [result] = results_of(LABELS, [0, 1], {})
    assert result["error"] == "rank 0-1: no answer"
