"""The living runs that hold the cards of a node, and those in its other containers, which an endpoint in a container does not see."""

from __future__ import annotations

import json
import posixpath
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.container import output_on_node
from orchestrator.node.run.run_folder import AGENT_LOG, AGENT_RECORD, attempt_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestrator.node.protocol.runs import HolderBody
    from orchestrator.transports.container import ContainerTransport

# A container shares the kernel with its node, whose /proc has the processes of all containers, with their files below root. The standard
# error of agents is their log, and beside it is their record. By a shell: the node itself may have no Python, or an old one.
_SCAN = (
    "date +%s; for p in /proc/[0-9]*; do log=$(readlink $p/fd/2) || continue; "
    'case $log in */runs/*/attempt-*/*/"$1") echo "$log"; cat "$p/root${log%"$1"}$2" | tr "\\n" " "; echo;; esac; done 2>/dev/null'
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A living run that holds cards, on the node of this name in its inventory, since this time of the clock of this machine."""

    run: str
    node: str
    since_s: float
    ranks: int
    kind: str
    visible: str | None
    """The value of the variable that selects its cards; None: it is not set."""

    @classmethod
    def of(cls, body: HolderBody) -> Holder:
        since_s, cards = time.time() - body["age_s"], body["cards"]
        return cls(body["run"], body["node"], since_s, body["ranks"], cards["kind"], cards["visible"])


def holders_beside(transport: ContainerTransport) -> list[Holder]:
    """The runs on the node itself and in all its containers whose processes the user of the login may look at."""
    _, printed, _ = output_on_node(transport, ["sh", "-c", _SCAN, "sh", AGENT_LOG, AGENT_RECORD])
    now, *lines = printed.splitlines() or [""]
    if not now.isdecimal():
        return []
    pairs = zip(lines[::2], lines[1::2], strict=False)
    return [Holder.of(body) for log, record in pairs for body in _body(log, record, float(now))]


def _body(log: str, record: str, now_s: float) -> Iterator[HolderBody]:
    """The entry of the agent with this log; none if its record is not readable, or it uses no cards."""
    attempt, node = posixpath.split(posixpath.dirname(log))
    try:
        agent: Mapping[str, Any] = json.loads(record)
        if attempt_number(posixpath.basename(attempt)) is None or not agent.get("cards"):
            return
        age_s, ranks = max(0.0, now_s - agent["started"]), len(agent["ranks"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return
    run = posixpath.basename(posixpath.dirname(attempt))
    yield {"run": run, "node": node, "age_s": age_s, "ranks": ranks, "cards": agent["cards"]}
