"""The overview of a run as lines for a person, for `orch status` and `orch top`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.cli.console import without_controls
from orchestrator.cli.numbers import number_text, rate_text, size_text
from orchestrator.node.number_text import counted
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.usecases.runs.look import Cards, Overview  # imports what queries nodes

LABEL = 12  # characters
OLD_S = 5.0  # programs write their progress once a second


def headline(found: Overview) -> str:
    return f"{found.id}  {found.state}  {safe(found.verdict)}"


def summary(found: Overview) -> list[str]:
    """The known values, one line each."""
    return [f"{label:<{LABEL}}{safe(text)}" for label, text in values(found) if text]


def values(found: Overview) -> Iterator[tuple[str, str]]:
    """The known values with their labels; some are empty."""
    yield "step", training_text(found)
    if found.training is not None:
        yield "saved", saved_text(found)
    yield "attempt", attempt_text(found)
    yield "time", _time_text(found)
    yield "command", found.command
    yield "launched in", found.folder or ""
    yield "checkpoints", found.checkpoints or ""
    if found.cards is not None:
        yield "cards", cards_text(*found.cards)


def training_text(found: Overview) -> str:
    """Step of steps, time to the end, loss and rate; with their age if they are old."""
    training = found.training
    if training is None:
        return ""
    steps = f"{training.step}" if training.steps is None else f"{training.step}/{training.steps}"
    parts = [steps, *([training.phase] if training.phase not in (None, "step") else [])]
    if found.eta_s:
        parts.append(f"ETA {clock(found.eta_s)}")
    if training.loss is not None:
        parts.append(f"loss {number_text(training.loss)}")
    if training.rate is not None:
        parts.append(rate_text(*training.rate))
    if found.training_age_s is not None and found.training_age_s >= OLD_S and not found.is_over:
        parts.append(f"{clock(found.training_age_s)} ago")
    return ", ".join(parts)


def saved_text(found: Overview) -> str:
    """The newest saved step, and the work that a kill would lose now."""
    training = found.training
    if training is None or training.saved is None or training.unsaved is None:
        return ""
    saved = f"step {training.saved}" if training.saved else "nothing yet"
    if found.is_over:
        return saved
    lost = counted(training.unsaved, "step")
    if training.unsaved_s:
        lost += f", {clock(training.unsaved_s)} of work"
    return f"{saved}; a kill now loses {lost if training.unsaved else 'nothing'}"


def attempt_text(found: Overview) -> str:
    if found.retries_left is None:
        return str(found.attempt)
    left = {0: "no retries left", 1: "1 retry left"}.get(found.retries_left, f"{found.retries_left} retries left")
    return f"{found.attempt}, {left}"


def _time_text(found: Overview) -> str:
    if not found.moments or found.duration_s is None:
        return ""
    begin = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.moments[0].time_s))
    return f"{'took' if found.ended else 'runs for'} {clock(found.duration_s)}, launched {begin}"


def cards_text(low: float, high: float) -> str:
    """The use of the least and of the most used card."""
    return f"{low:.0f} %" if low == high else f"{low:.0f}-{high:.0f} %"


def card_age(cards: Cards) -> str:
    return f"{clock(cards.age_s)} ago"


def space_text(count: float) -> str:
    """A number of bytes without a space: 120GB."""
    return size_text(count).replace(" ", "").replace(".0", "")


def safe(text: str) -> str:
    """The text on one line, safe for a terminal."""
    return without_controls(" ".join(text.split()))
