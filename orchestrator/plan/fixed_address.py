"""Options by which a user's own program is given the address of rank 0 and its number, as in the line for one node of a README."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.node.ranks.rank_launchers import is_own_host, is_python, option_of, underscored

_ADDRESSES = ("--dist_url", "--init_method", "--dist_init_method")
_NUMBERS = ("--rank", "--world_size", "--node_rank", "--dist_rank")
_SPAWNS = "--multiprocessing_distributed"
"""An option of torch's ImageNet example and many that follow it: one process for each node, which starts the ranks on its devices."""


def fixed_address(argv: Sequence[str]) -> str:
    """The option that makes each of several nodes wait for itself, or take itself for the same rank; empty if there is none."""
    address = option_of(argv, _ADDRESSES) or ""
    if not address.startswith("tcp://"):
        return ""
    if is_own_host(address.removeprefix("tcp://")):
        return f"{_named(argv, _ADDRESSES)} {address} looks for rank 0 on its own node"
    rank = option_of(argv, ("--rank",)) or ""
    return f"--rank {rank} is the same in all of them" if rank.isdecimal() else ""


def joined_command(verb: str, argv: Sequence[str]) -> str:
    """The command line in which these options join all nodes, in backquotes."""
    address = _named(argv, _ADDRESSES)
    words = _without(argv, (*_ADDRESSES, *_NUMBERS))
    if not any(underscored(word) == _SPAWNS for word in words):
        return f"`orch {verb} … -- {shlex.join([*words, address, 'env://'])}`"
    start = [] if is_python(words[0]) else ["python3"]
    line = f"{shlex.join([*start, *words])} {address} tcp://$MASTER_ADDR:$MASTER_PORT --world-size $NNODES --rank $NODE_RANK"
    return f"`orch {verb} … --per-node -- bash -c {shlex.quote(line)}`"


def _named(argv: Sequence[str], names: Sequence[str]) -> str:
    """One of these options as it is written."""
    return next(name for word in argv if underscored(name := word.partition("=")[0]) in names)


def _without(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words without these options and their values."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_option = underscored(name) in names
        if not is_option and not is_value:
            kept.append(word)
        is_value = is_option and not equals
    return kept
