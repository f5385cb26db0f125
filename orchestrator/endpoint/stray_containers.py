"""Containers that orch has created on a node, in which no run lives any more but processes of ended runs do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.endpoint.container import output_on_node
from orchestrator.node.run.run_folder import AGENT_LOG
from orchestrator.transports.container import CREATED_LABEL

if TYPE_CHECKING:
    from orchestrator.transports.container import ContainerTransport

# In a container: `living` if it has an agent, or a process that was started from outside, such as an endpoint or `orch exec`, whose
# parent is 0; and the run and the age in seconds of each process of a run.
_LOOK = (
    'now=$(date +%s); for p in /proc/[0-9]*; do n=${p#/proc/}; [ "$n" = 1 ] || [ "$n" = $$ ] && continue; '
    'case $(readlink $p/fd/2) in */"$1") echo living; exit;; esac; '
    'parent=$(sed -n "s/^PPid:[^0-9]*//p" $p/status) || continue; [ "$parent" = 0 ] && { echo living; exit; }; '
    'run=$(tr "\\0" "\\n" <$p/environ | sed -n "s/^ORCH_RUN_ID=//p") || continue; '
    '[ -n "$run" ] && echo "$run $((now - $(stat -c %Y $p)))"; done 2>/dev/null; true'
)
# The names of containers of this user end with the uid of the login.
_LIST = 'exec $1 ps --no-trunc --filter "label=$2" --filter "name=-$(id -u)\\$" --format "{{.ID}} {{.Names}}"'
# By the id under which the processes were found, and only if it still has the label.
_REMOVE = '[ -n "$($1 ps --no-trunc --quiet --filter "label=$2" --filter "id=$3")" ] && exec $1 rm --force "$3"'


@dataclass(frozen=True, slots=True)
class StrayContainer:
    """A container with processes of ended runs; the age is that of the youngest process, in seconds."""

    id: str
    name: str
    runs: tuple[str, ...]
    age_s: float


def stray_containers(transport: ContainerTransport, min_age_s: float) -> Iterator[StrayContainer]:
    """The containers of orch on a node of this user's without a living run, whose processes of runs are all this old."""
    client = " ".join(transport.container.client)
    _, listed, _ = output_on_node(transport, ["sh", "-c", _LIST, "sh", client, CREATED_LABEL])
    for container, _, name in (line.partition(" ") for line in listed.splitlines()):
        inside = ["exec", container, "sh", "-c", _LOOK, "sh", AGENT_LOG]
        status, printed, _ = output_on_node(transport, [*transport.container.client, *inside])
        lines = [line.rpartition(" ") for line in printed.splitlines()]
        if status != 0 or not lines or any(not age.isdecimal() for _, _, age in lines):
            continue  # empty, living, or not to be looked at
        youngest_s = min(float(age) for _, _, age in lines)
        if youngest_s >= min_age_s:
            runs = tuple(sorted({run for run, _, _ in lines}))
            yield StrayContainer(container, name.strip(), runs, youngest_s)


def remove_container(transport: ContainerTransport, stray: StrayContainer) -> str:
    """Remove a container with all its processes; return why that failed, else an empty text."""
    client = " ".join(transport.container.client)
    status, _, errors = output_on_node(transport, ["sh", "-c", _REMOVE, "sh", client, CREATED_LABEL, stray.id])
    return "" if status == 0 else (errors.strip().splitlines() or ["it is gone, or no container of orch any more"])[-1]
