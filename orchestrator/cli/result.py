"""The end of the screen of a run that was watched: its results, and the next commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from orchestrator.cli.console import without_controls
from orchestrator.cli.numbers import number_text
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.durations import clock

LABEL = 12  # characters; as print_failure


def print_result(record: RunRecord, loss: str, *, is_diagnosed: bool) -> None:
    """
    Print the summary of a run that is done, and the next commands, on stderr.

    Args:
        loss: the course of the loss as a sparkline; empty if it is unknown.
        is_diagnosed: the cause of the failure was printed, with the command that shows more.
    """
    text = "".join(
        f"{without_controls(line).rstrip()}\n" for line in result_lines(record, loss, is_diagnosed=is_diagnosed)
    )
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def result_lines(record: RunRecord, loss: str, *, is_diagnosed: bool) -> list[str]:
    """The lines of print_result."""
    values = [*_results(record.summary, loss), *_next(record, is_diagnosed=is_diagnosed)]
    return [f"{label:<{LABEL}}{value}" for label, value in values]


def _results(summary: dict[str, Any], loss: str) -> Iterator[tuple[str, str]]:
    if (steps := summary.get("steps")) is not None:
        yield "steps", number_text(steps)
    first, last = summary.get("first_loss"), summary.get("last_loss")
    if loss:
        yield "loss", loss
    elif first is not None and last is not None:
        yield "loss", f"{number_text(first)}, at the end {number_text(last)}"
    rates = [(summary.get(f"{unit}_per_s"), f"{unit}/s") for unit in ("tokens", "samples")]
    step_s, slow_s = summary.get("step_time_p50_s"), summary.get("step_time_p99_s")
    speed = [f"{number_text(rate)} {unit}" for rate, unit in rates if rate is not None]
    if step_s is not None:
        speed.append(
            f"{number_text(step_s)} s/step" + (f" (p99 {number_text(slow_s)} s)" if slow_s is not None else "")
        )
    if (mfu := summary.get("mfu")) is not None:
        speed.append(f"MFU {number_text(mfu)}")
    if speed:
        yield "speed", ", ".join(speed)
    if isinstance(wall_s := summary.get("wall_s"), int | float):
        yield "time", clock(wall_s)


def _next(record: RunRecord, *, is_diagnosed: bool) -> Iterator[tuple[str, str]]:
    if record.state is RunState.DONE:
        files = next(iter([str(record.summary.get("checkpoint") or ""), *record.left]), "")
        if files:
            yield "files", files
        yield "next", f"orch stats {record.id}"
        if files:
            yield "", f"orch cp {record.id}:{files.rpartition(f'/{record.id}/')[2]} DIR"
    elif record.state in (RunState.FAILED, RunState.LOST) and record.started:
        if not is_diagnosed:
            yield "next", f"orch diagnose {record.id}"
        yield "", f"orch logs {record.id} --tail 50"
