"""The overview in the format of Prometheus: known values alone, and labels of any text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.usecases.reports import prometheus
from orchestrator.usecases.reports.prometheus import metrics_text
from orchestrator.verdict.overview import Cards, CardView, NodeView, Overview, RankView
from orchestrator.verdict.training import Training

CARDS = Cards(
    10.0, 90.0, 2048.0, None, 1.0, (CardView(0, 90.0, 2048.0, 61.0, None), CardView(1, 10.0, None, None, None))
)
RANK = RankView(3, "running", "step", 93, 100, age_s=1.5, behind=2, late_s=0.25, cpu_wait=0.5)
RUN = Overview(
    id="a-run",
    state="RUNNING",
    health="warning",
    verdict="rank 3 is slow",
    training=Training(
        93, 100, "step", 2.5, step_s=0.5, per_step=1000.0, unit="tokens", saved=80, written_s=1_800_000_000.0
    ),
    training_age_s=1.0,
    eta_s=2.5,
    attempt=2,
    max_retries=3,
    started="2027-01-15T07:58:00+00:00",
    ended=None,
    duration_s=120.0,
    command="train.py",
    folder=None,
    checkpoints=None,
    cards=(10.0, 90.0),
    nodes=(NodeView("n0", "running", (RANK,), CARDS), NodeView("n1", "no answer", problem="no route to host")),
    findings=(),
)


def found(run: Overview) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = text_string_to_metric_families(metrics_text(run))
    return {family.name: [(sample.labels, sample.value) for sample in family.samples] for family in families}


def test_values_are_those_of_the_overview() -> None:
    of_run = {"run": "a-run", "attempt": "2"}
    of_node = of_run | {"node": "n0"}
    expected: dict[str, Any] = {
        "orch_run_start_time_seconds": [(of_run, 1_799_999_880)],
        "orch_run_duration_seconds": [(of_run, 120)],
        "orch_run_retries_used": [(of_run, 1)],
        "orch_run_retries_limit": [(of_run, 3)],
        "orch_run_eta_seconds": [(of_run, 2.5)],
        "orch_run_findings": [(of_run, 0)],
        "orch_run_step": [(of_run, 93)],
        "orch_run_steps_planned": [(of_run, 100)],
        "orch_run_loss": [(of_run, 2.5)],
        "orch_run_step_duration_seconds": [(of_run, 0.5)],
        "orch_run_tokens_per_second": [(of_run, 2000)],
        "orch_run_saved_step": [(of_run, 80)],
        "orch_run_unsaved_steps": [(of_run, 13)],
        "orch_run_unsaved_seconds": [(of_run, 6.5)],
        "orch_run_progress_time_seconds": [(of_run, 1_800_000_000)],
        "orch_node_up": [(of_node, 1), (of_run | {"node": "n1"}, 0)],
        "orch_node_cards_use_min_ratio": [(of_node, 0.1)],
        "orch_node_cards_use_max_ratio": [(of_node, 0.9)],
        "orch_rank_step": [(of_node | {"rank": "3"}, 93)],
        "orch_rank_progress_age_seconds": [(of_node | {"rank": "3"}, 1.5)],
        "orch_rank_late_seconds": [(of_node | {"rank": "3"}, 0.25)],
        "orch_rank_cpu_wait_ratio": [(of_node | {"rank": "3"}, 0.5)],
        "orch_rank_collectives_behind": [(of_node | {"rank": "3"}, 2)],
        "orch_card_use_ratio": [(of_node | {"card": "0"}, 0.9), (of_node | {"card": "1"}, 0.1)],
        "orch_card_memory_used_bytes": [(of_node | {"card": "0"}, 2 << 30)],
        "orch_card_temperature_celsius": [(of_node | {"card": "0"}, 61)],
    }
    actual = found(RUN)
    states = {labels["state"]: value for labels, value in actual.pop("orch_run_state")}
    assert [state for state, value in states.items() if value] == ["RUNNING"]
    assert len(states) == 7
    assert [labels["health"] for labels, value in actual.pop("orch_run_health") if value] == ["warning"]
    assert actual == expected


@pytest.mark.parametrize(
    ("training", "name"),
    [
        (Training(1, step_s=0.5), "orch_run_steps_per_second"),
        (Training(1, step_s=0.5, per_step=4.0, unit="samples"), "orch_run_samples_per_second"),
    ],
)
def test_speed_is_in_the_unit_that_is_known(training: Training, name: str) -> None:
    assert [each for each in found(replace(RUN, training=training)) if each.endswith("_per_second")] == [name]


@pytest.mark.parametrize(("loss", "text"), [(float("nan"), "NaN"), (float("inf"), "+Inf"), (-float("inf"), "-Inf")])
def test_loss_that_is_not_finite(loss: float, text: str) -> None:
    assert f'orch_run_loss{{run="a-run",attempt="2"}} {text}\n' in metrics_text(
        replace(RUN, training=Training(1, loss=loss))
    )


def test_labels_may_have_any_text() -> None:
    hostile = 'a"b\\nc\nd{e="f"} 1\\'
    run = replace(RUN, id=hostile, nodes=(NodeView(hostile, "running"),))
    assert found(run)["orch_node_up"] == [({"run": hostile, "attempt": "2", "node": hostile}, 1)]


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Lower case, a prefix, base units at the end, and no _total, which is for counters; help is one line."""
    gauges = [
        gauge
        for table in ("OF_RUN", "OF_TRAINING", "OF_NODE", "OF_RANK", "OF_CARD")
        for gauge in getattr(prometheus, table)
    ]
    assert len({gauge.name for gauge in gauges}) == len(gauges)
    for gauge in gauges:
        assert re.fullmatch(r"orch_(run|node|rank|card)_[a-z_]+", gauge.name)
        assert not gauge.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_ms", "_percent", "_mib"))
        assert gauge.help.endswith(".")
        assert "\n" not in gauge.help
        assert "\\" not in gauge.help
