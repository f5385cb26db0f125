"""The guard of cards: a launch whose cards a living run of this user holds is refused, or waits until they are free."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.errors import LaunchError, PreflightRefused
from orchestrator.fanout import map_parallel, successes
from orchestrator.node.cards import VISIBLE
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.runs import home_store
from orchestrator.run import trainer_setting

if TYPE_CHECKING:
    from orchestrator.endpoint.holders import Holder
    from orchestrator.launch.planned import Planned
    from orchestrator.launchers.direct import DirectLauncher
    from orchestrator.plan.plan import LaunchPlan, NodePlan

POLL_S = 2.0

Held = dict["Holder", list[str]]
"""The runs that hold cards of a launch, each with the nodes of the launch."""


def require_free(
    planned: Planned,
    launcher: DirectLauncher,
    on_warning: Callable[[str], None],
    *,
    is_stopped: Callable[[], bool],
) -> None:
    """
    Require that no living run of this user holds a card of the launch; with --wait-free, wait for that.

    Raises:
        PreflightRefused: some do, or still do at the end of the wait; the message names the runs.
        LaunchError: `orch stop` has ended the wait.
    """
    plan, wait_s = planned.plan, planned.wait_free_s
    if planned.shares_cards or plan.attempt > 1:
        return
    deadline, announced = time.monotonic() + (wait_s or 0.0), set[str]()
    until = _local(time.time() + (wait_s or 0.0))
    while held := held_cards(plan, launcher):
        lines = [_line(holder, nodes) for holder, nodes in held.items()]
        if wait_s is None or time.monotonic() >= deadline:
            waited = "" if wait_s is None else f", also after {wait_s:g} s (--wait-free)"
            raise PreflightRefused(
                "\n  ".join(
                    [f"cards of this launch are in use by runs of yours{waited}, so nothing was started", *lines]
                ),
                hint=_next_steps(held, planned),
            )
        if new := {holder.run for holder in held} - announced:
            announced |= new
            on_warning(f"waits until {until} at the latest (--wait-free): {'; '.join(lines)}")
        if is_stopped():
            raise LaunchError("the run was stopped while it waited for cards")
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def held_cards(plan: LaunchPlan, launcher: DirectLauncher) -> Held:
    """The living runs of this user that hold cards of the launch."""
    if trainer_setting(plan.program, plan.config, "device") == "cpu":
        return {}
    nodes = [(node, kind) for node in plan.nodes if (kind := _kind(node, launcher))]
    results = map_parallel(nodes, lambda entry: launcher.reach(entry[0]).holders(), limit=max(1, len(nodes)))
    held: dict[str, tuple[Holder, list[str]]] = {}
    for (node, kind), holders in zip(nodes, successes(results), strict=True):
        wanted = cards_of(kind, {**node.defaults, **node.env}, len(node.ranks))
        for holder in holders:
            values = {} if holder.visible is None else {VISIBLE[holder.kind]: holder.visible}
            is_other = holder.run != plan.run_id and holder.kind == kind
            if is_other and _overlap(wanted, cards_of(holder.kind, values, holder.ranks)):
                names = held.setdefault(holder.run, (holder, []))[1]
                names += [] if node.name in names else [node.name]
    return dict(held.values())


def _kind(node: NodePlan, launcher: DirectLauncher) -> str | None:
    """The kind of cards that the ranks of a node use; None: they use none."""
    if node.accelerator != "auto":
        return node.accelerator if node.accelerator in VISIBLE else None
    return next((kind for kind, number in launcher.reach(node).facts.cards.items() if number), None)


def cards_of(kind: str, env: Mapping[str, str], ranks: int) -> frozenset[str]:
    """The names of the cards that ranks use: those that the environment names, else the first ones."""
    value = env.get(VISIBLE[kind])
    if value is None:
        return frozenset(map(str, range(ranks)))
    names = [name.strip() for name in value.split(",")]
    if names in ([""], ["-1"], ["NoDevFiles"]):  # hides all
        return frozenset()
    return frozenset(names)


def _overlap(left: frozenset[str], right: frozenset[str]) -> bool:
    """Return whether cards are in both sets. An index and a UUID may name the same card: only names of one kind are compared."""
    if not left or not right:
        return False
    are_indices = {name.isdecimal() for name in left | right}
    return bool(left & right) or len(are_indices) > 1


def _line(holder: Holder, nodes: Sequence[str]) -> str:
    cards = f"cards {holder.visible}" if holder.visible else f"{holder.ranks} cards" if holder.ranks > 1 else "card 0"
    name = holder.run.rsplit("-", 3)[0]
    return f"{fold(nodes)}: run {holder.run} ({name}) holds {cards} since {_local(holder.since_s)}"


def _local(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _next_steps(held: Held, planned: Planned) -> str:
    """The commands that free the cards, and for launches that have them, the options to wait or to share."""
    runs, file = home_store().runs, shlex.quote(planned.record.inventory["file"] or "FILE")
    names = [holder.run for holder in held]
    stop = " and ".join(f"orch stop {name}{'' if (runs / name).is_dir() else f' -i {file}'}" for name in names)
    if planned.record.is_trial or planned.plan.program.module != "trainer":  # a rung, or a benchmark
        return f"wait for its end, or {stop}"
    return f"{stop}; --wait-free SPAN waits for the end; --share starts beside it, on the same cards"
