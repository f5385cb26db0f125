"""The overview of a run in the text format of Prometheus, as a file for the textfile collector of node_exporter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, get_args

from orchestrator.records.files import write_file
from orchestrator.run import RunState
from orchestrator.verdict.health import Health, times
from orchestrator.verdict.overview import CardView, NodeView, Overview, RankView
from orchestrator.verdict.training import Training

READABLE = 0o644  # node_exporter is another user
MIB = 1 << 20
STATES, HEALTHS = [state.value for state in RunState], get_args(Health)
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Gauge(Generic[Subject]):
    """A gauge of a run, node, rank or card; `value` returns None where it is unknown."""

    name: str
    help: str
    value: Callable[[Subject], float | None]


def _rate_in(unit: str) -> Callable[[Training], float | None]:
    return lambda training: training.rate[0] if training.rate is not None and training.rate[1] == unit else None


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


OF_RUN: Sequence[Gauge[Overview]] = (
    Gauge(
        "orch_run_start_time_seconds",
        "Start of the launch, in seconds since 1970.",
        lambda run: next(iter(times(run.started)), None),
    ),
    Gauge("orch_run_duration_seconds", "Time from the launch to now, or to the end.", lambda run: run.duration_s),
    Gauge("orch_run_retries_used", "Restarts so far.", lambda run: run.attempt - 1),
    Gauge("orch_run_retries_limit", "Restarts that are permitted.", lambda run: run.max_retries),
    Gauge("orch_run_eta_seconds", "Time from now to the end of the planned steps.", lambda run: run.eta_s),
    Gauge("orch_run_findings", "Faults that were found and have not ended.", lambda run: len(run.findings)),
)
OF_TRAINING: Sequence[Gauge[Training]] = (
    Gauge("orch_run_step", "Optimizer steps that are done.", lambda training: training.step),
    Gauge("orch_run_steps_planned", "Optimizer steps that are planned.", lambda training: training.steps),
    Gauge("orch_run_loss", "Last reported loss.", lambda training: training.loss),
    Gauge("orch_run_step_duration_seconds", "Time of one step.", lambda training: training.step_s),
    Gauge("orch_run_tokens_per_second", "Speed of all ranks, in tokens.", _rate_in("tokens")),
    Gauge("orch_run_samples_per_second", "Speed of all ranks, in samples.", _rate_in("samples")),
    Gauge(
        "orch_run_steps_per_second",
        "Speed in steps, of a program that reports neither tokens nor samples.",
        _rate_in("steps"),
    ),
    Gauge("orch_run_saved_step", "Newest step that a new attempt can continue from.", lambda training: training.saved),
    Gauge("orch_run_unsaved_steps", "Steps that a kill would lose now.", lambda training: training.unsaved),
    Gauge("orch_run_unsaved_seconds", "Work that a kill would lose now.", lambda training: training.unsaved_s),
    Gauge(
        "orch_run_progress_time_seconds",
        "Time at which the program reported its newest values, in seconds since 1970.",
        lambda training: training.written_s,
    ),
)
OF_NODE: Sequence[Gauge[NodeView]] = (
    Gauge(
        "orch_node_up", "1 if the node has just answered; otherwise its values are old.", lambda node: not node.problem
    ),
    Gauge(
        "orch_node_cards_use_min_ratio",
        "Use of the least used card of those that the ranks need.",
        lambda node: _ratio(node.cards.low_percent if node.cards else None),
    ),
    Gauge(
        "orch_node_cards_use_max_ratio",
        "Use of the most used card.",
        lambda node: _ratio(node.cards.high_percent if node.cards else None),
    ),
)
OF_RANK: Sequence[Gauge[RankView]] = (
    Gauge("orch_rank_step", "Optimizer steps that the rank has reported.", lambda rank: rank.step),
    Gauge("orch_rank_progress_age_seconds", "Age of the progress of the rank.", lambda rank: rank.age_s),
    Gauge(
        "orch_rank_late_seconds",
        "Lateness of the rank at the collectives of a step, beside most.",
        lambda rank: rank.late_s,
    ),
    Gauge(
        "orch_rank_cpu_wait_ratio", "Share of the time for which the rank waits for a CPU.", lambda rank: rank.cpu_wait
    ),
    Gauge(
        "orch_rank_collectives_behind",
        "Collectives that the rank has enqueued less than the furthest one, while no rank makes progress.",
        lambda rank: rank.behind,
    ),
)
OF_CARD: Sequence[Gauge[CardView]] = (
    Gauge("orch_card_use_ratio", "Use of the card.", lambda card: _ratio(card.percent)),
    Gauge(
        "orch_card_memory_used_bytes",
        "Memory of the card that is used.",
        lambda card: None if card.memory_mib is None else card.memory_mib * MIB,
    ),
    Gauge("orch_card_temperature_celsius", "Temperature of the card.", lambda card: card.temperature_c),
)


def write_metrics(file: Path, run: Overview) -> None:
    """Replace the file atomically, readable for every user; OSError if it cannot be written."""
    write_file(file, metrics_text(run), sync=False, mode=READABLE)


def metrics_text(run: Overview) -> str:
    """The known values, with the labels run, attempt, node, rank and card."""
    labels = {"run": run.id, "attempt": str(run.attempt)}
    nodes = [({**labels, "node": node.node}, node) for node in run.nodes]
    ranks = [({**of_node, "rank": str(rank.rank)}, rank) for of_node, node in nodes for rank in node.ranks]
    cards = [
        ({**of_node, "card": str(card.index)}, card)
        for of_node, node in nodes
        if node.cards
        for card in node.cards.each
    ]
    lines = [
        *_head("orch_run_state", "1 for the state of the run, 0 for the others."),
        *(f"orch_run_state{_labels({**labels, 'state': each})} {int(each == run.state)}" for each in STATES),
        *_head("orch_run_health", "1 for the health of the run, 0 for the others."),
        *(f"orch_run_health{_labels({**labels, 'health': each})} {int(each == run.health)}" for each in HEALTHS),
        *_samples(OF_RUN, [(labels, run)]),
        *_samples(OF_TRAINING, [] if run.training is None else [(labels, run.training)]),
        *_samples(OF_NODE, nodes),
        *_samples(OF_RANK, ranks),
        *_samples(OF_CARD, cards),
    ]
    return "".join(f"{line}\n" for line in lines)


def _samples(gauges: Sequence[Gauge[Subject]], subjects: Sequence[tuple[Mapping[str, str], Subject]]) -> Iterator[str]:
    """The gauges that have a value for a subject at least."""
    for gauge in gauges:
        known = [(labels, value) for labels, subject in subjects if (value := gauge.value(subject)) is not None]
        if known:
            yield from _head(gauge.name, gauge.help)
            yield from (f"{gauge.name}{_labels(labels)} {_number(value)}" for labels, value in known)


def _head(name: str, help_text: str) -> Sequence[str]:
    return (f"# HELP {name} {help_text}", f"# TYPE {name} gauge")


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """The value; Prometheus writes what is not finite as NaN, +Inf and -Inf."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if isinstance(value, int) else repr(value)
