"""Samples of the vendor's tool, once a minute while the ranks run, and the report of idle cards in the node folder."""

from __future__ import annotations

import os
import time

from orchestrator.node.agent.idle_cards import IdleCards, reported_steps
from orchestrator.node.cards import VISIBLE, kind_of_cards, visible_devices
from orchestrator.node.number_text import format_numbers
from orchestrator.node.run.run_folder import CARDS_REPORT, started_ranks
from orchestrator.node.system.fast_stdlib import suppress
from orchestrator.node.system.files import write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from orchestrator.node.run.agent_files import CardsBody
    from orchestrator.node.run.events import EventLog
    from orchestrator.node.run.job import Job
    from orchestrator.node.vendor.readings import CardReading
    from orchestrator.node.vendor.tool import Tool

TOOL_WAIT_S = 20.0  # without the persistence daemon the driver starts for some seconds


class CardSampler:
    """
    Starts the tool and reads its output without waiting for it: the agent polls this four times a second.

    A tool that cannot be killed, because the driver does not answer, stays the only one.
    """

    def __init__(self, job: Job, folder: str, events: EventLog) -> None:
        self._job, self._folder, self._events = job, folder, events
        self._kind = kind_of_cards(job.accelerator)
        self._idle_cards = IdleCards(len(job.rank_numbers), may_all_idle=job.accelerator in VISIBLE)
        self._due_s = time.monotonic() + job.card_sample_s
        self._tool: Optional[Tool] = None
        self._is_taken = False  # the result of that tool
        self._was_idle = False
        self._mean_percent, self._samples = 0.0, 0  # since the first step

    def poll(self) -> None:
        """Start a sample if one is due, or take the result of the one that has ended."""
        if self._tool is None:
            if self._kind is not None and time.monotonic() >= self._due_s:
                from orchestrator.node.vendor import efsmi, nvidia_smi  # only a node with cards needs them
                from orchestrator.node.vendor.tool import Tool

                self._due_s = time.monotonic() + self._job.card_sample_s
                fields = ("index", "uuid", "name", "memory.used", "utilization.gpu", "temperature.gpu", "pstate")
                self._tool = Tool(nvidia_smi.query_gpu(fields) if self._kind == "cuda" else efsmi.table(), TOOL_WAIT_S)
            return
        self._tool.poll()
        if self._tool.has_ended and not self._is_taken:
            self._is_taken = True
            self._take(self._tool)
        if self._tool.has_ended and self._tool.reap(0):
            self._tool, self._is_taken = None, False

    def close(self) -> None:
        """Kill a tool that still runs; there is no further sample."""
        self._kind, self._is_taken = None, True
        if self._tool is not None and not self._tool.has_ended:
            self._tool.kill("the ranks have ended")

    @property
    def unkillable(self) -> Optional[int]:
        """The pid of a killed tool that the driver does not let end; None if there is none."""
        if self._tool is None or not self._tool.has_ended or self._tool.reap(0):
            return None
        return self._tool.pid

    def _take(self, tool: Tool) -> None:
        """Judge a sample, and report it; a missing tool is reported once."""
        from orchestrator.node.vendor import efsmi, nvidia_smi  # as above

        assert self._kind is not None, "a tool was started"
        readings = nvidia_smi.parse_gpus(tool.output) if self._kind == "cuda" else efsmi.parse_table(tool.output)
        visible = visible_cards(readings["cards"], os.environ.get(VISIBLE[self._kind]))
        loads = {card["index"]: card.get("utilization_percent") for card in visible}
        error = tool.error or "; ".join(readings["faults"])
        steps = reported_steps(self._folder, started_ranks(self._folder, self._job.rank_numbers))
        idle = [] if tool.error else self._idle_cards.add(loads, steps)
        if steps.newest and not tool.error:
            known = sorted((load for load in loads.values() if load is not None), reverse=True)
            percents = known[: self._idle_cards.expected(loads)]
            if percents:
                self._samples += 1
                self._mean_percent += (sum(percents) / len(percents) - self._mean_percent) / self._samples
        body: CardsBody = {
            "time": self._events.clock.now(),
            "tool": tool.name,
            "error": error,
            "cards": [{name: card.get(name) for name in REPORTED} for card in readings["cards"]],
            "idle": idle,
            "expected": self._idle_cards.expected(loads),
            "used": len(loads) - len(idle),
            "mean_percent": round(self._mean_percent, 1),
            "samples": self._samples,
        }
        with suppress(OSError):  # a full disk must not end the run
            write_json(os.path.join(self._folder, CARDS_REPORT), body)
        busy_count = sum(1 for load in loads.values() if load)
        if idle and not self._was_idle:
            self._was_idle = True
            self._events.write_message(idle_message(body))
        elif self._was_idle and busy_count >= body["expected"] > 0:  # a sample that failed proves nothing
            self._was_idle = False
            self._events.write_message("the idle cards are in use now")
        if not tool.is_installed:
            self._kind = None


REPORTED = ("index", "name", "utilization_percent", "memory_used_mib", "temperature_c", "state")


def idle_message(body: CardsBody) -> str:
    """The warning in the node's log; `orch status` adds the remedy."""
    count = body["expected"] - body["used"]
    cards = format_numbers(body["idle"])
    return f"warning: {count} of {body['expected']} cards idle: {body['tool']} shows 0 % on {cards} in several samples in a row"


def visible_cards(cards: List[CardReading], visible: Optional[str]) -> List[CardReading]:
    """The cards that CUDA_VISIBLE_DEVICES or TOPS_VISIBLE_DEVICES leaves; none if it has other names than index and UUID."""
    if visible is None:
        return cards
    by_name: Dict[str, CardReading] = {str(card["index"]): card for card in cards}
    by_name.update({str(card.get("uuid")): card for card in cards})
    return visible_devices(by_name, visible) or []
