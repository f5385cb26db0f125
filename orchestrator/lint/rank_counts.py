"""The number of ranks that the launcher in a script starts on each node, compared with that of the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.lint.assignment import Script
from orchestrator.lint.expand import Variables
from orchestrator.lint.launch import LAUNCHERS, name_of
from orchestrator.lint.sbatch import options
from orchestrator.lint.shell import SourcedText, nothing, read_shell
from orchestrator.node.ranks.rank_launchers import SEPARATE
from orchestrator.portable.names.hostlist import fold

EXPECTED = "NPROC_PER_NODE"
"""The variable by which orch gives a node its number of ranks."""

_BY_MPI = ("mpirun", "mpiexec", "horovodrun")
"""Launchers that start the ranks of all nodes from the first one."""
_BY_SLURM = ("srun", "sbatch", "salloc")
_FIRST_NODE = re.compile(r"\b(?:NODE_RANK|ORCH_NODE_RANK|ORCH_HOSTFILE|ORCH_NODE_ADDRESSES)\b")


@dataclass(frozen=True, slots=True)
class Started:
    """A launcher in a script, its place, the number of ranks that it starts on a node, and the node's; None: not written as a number."""

    launcher: str
    file: str
    line: int
    count: int | None
    node_rank: int | None
    is_alone: bool
    """Its options are those of a training on one node."""


def started_ranks(
    text: str,
    file: str,
    given: Mapping[str, str],
    sourced: SourcedText = nothing,
    *,
    arguments: Sequence[str] | None = None,
) -> list[Started]:
    """The launchers of a script that starts with the variables `given` and these arguments, and of the files that it sources."""
    is_shifted = re.search(r"\bshift\b", text) is not None  # then $2 is any of them
    known = None if arguments is None or is_shifted else tuple(arguments)
    return list(_launchers(read_shell(text, file, variables=Variables(dict(given), {}, known), sourced=sourced)))


def rank_remarks(
    text: str,
    file: str,
    given: Mapping[str, Mapping[str, str]],
    sourced: SourcedText = nothing,
    *,
    arguments: Sequence[str] | None = None,
) -> list[str]:
    """
    Sentences about a script that starts other numbers of ranks than the launch has; `given` are the variables of each node.

    With the script's `arguments`, None if they are unknown. Only if no launcher of the script starts the launch's number, or one that is known when it runs: a script may prepare data with fewer.
    """
    found: dict[tuple[Started, str], list[str]] = {}
    all_started: list[Started] = []
    for node, variables in given.items():
        started = started_ranks(text, file, variables, sourced, arguments=arguments)
        all_started += started
        expected = variables[EXPECTED]
        if started and not {entry.count for entry in started} & {None, int(expected)}:
            found.setdefault((started[-1], expected), []).append(node)
    differs = len({entry.count for entry, _ in found}) > 1
    unequal = (
        "; torchrun and DDP need the same number on all nodes, or a launcher that is given each" if differs else ""
    )
    is_separate = all(variables.get(SEPARATE) == "1" for variables in given.values())
    same = _same_node(all_started) if len(given) > 1 and not is_separate else []
    return same + [
        f"{entry.file}:{entry.line} starts {entry.count} ranks on {fold(nodes)} ({entry.launcher}), and the launch has {expected} there"
        f"{unequal}; write ${EXPECTED} in the script, or correct devices: in the inventory, or -j"
        for (entry, expected), nodes in found.items()
    ]


def _same_node(started: Sequence[Started]) -> list[str]:
    """A sentence if all launchers of all nodes have the number of the same node, or start one node, as in a script for one node alone."""
    numbers = {entry.node_rank for entry in started}
    if not started or (not all(entry.is_alone for entry in started) and (len(numbers) != 1 or None in numbers)):
        return []
    entry = started[-1]
    subject = "a training of one node" if entry.is_alone else f"node {entry.node_rank}"
    effect = "trains alone" if entry.is_alone else "waits for the others"
    text = f"{entry.file}:{entry.line} starts {subject} on every node ({entry.launcher}), and each {effect}"
    return [f"{text}; write --nnodes=$NNODES, $NODE_RANK and $MASTER_ADDR in the script, which orch sets on each node"]


def mpi_starts(text: str, file: str) -> list[tuple[str, int]]:
    """Launcher and line of each start by MPI in a script; none if the script distinguishes the nodes."""
    if _FIRST_NODE.search(text):
        return []
    commands = read_shell(text, file).commands
    return [(str(words[0].value), words[0].line) for words in commands if words and words[0].value in _BY_MPI]


def slurm_starts(text: str, file: str) -> list[tuple[str, int]]:
    """Name and line of each command in a script that needs an allocation of Slurm: ranks do not get the variables of the job."""
    return [
        (str(words[0].value), words[0].line)
        for words in read_shell(text, file).commands
        if words and words[0].value in _BY_SLURM
    ]


def _launchers(script: Script) -> Iterator[Started]:
    for command in script.commands:
        start = next((index for index, word in enumerate(command) if name_of(word) in LAUNCHERS), None)
        if start is not None:
            name = name_of(command[start])
            words = [word.pattern for word in command[start + 1 :]]
            program = next((index for index, word in enumerate(words) if word.endswith(".py")), len(words))
            given = {key.replace("-", "_"): value for key, value in options(words[:program])}
            is_alone = "standalone" in given or "1" in (given.get("nnodes"), given.get("num_machines"))
            node_rank = None if is_alone else _node_rank(given)
            yield Started(name, script.file, command[start].line, _count(name, given), node_rank, is_alone)
    for inner in (*script.embedded, *script.sourced):
        yield from _launchers(inner)


def _count(launcher: str, given: Mapping[str, str]) -> int | None:
    if launcher == "accelerate":
        total, nodes = given.get("num_processes", ""), given.get("num_machines", "1")
        is_known = total.isdecimal() and nodes.isdecimal() and int(nodes) > 0
        return int(total) // int(nodes) if is_known else None
    text = given.get("num_gpus" if launcher == "deepspeed" else "nproc_per_node", "")
    return int(text) if text.isdecimal() else None


def _node_rank(given: Mapping[str, str]) -> int | None:
    """The number of the node, if the launcher is given one."""
    text = given.get("node_rank", given.get("machine_rank", ""))
    return int(text) if text.isdecimal() else None
