"""The text that names ranks and their nodes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.names.hostlist import fold
from orchestrator.node.number_list import format_numbers


def ranks_on_nodes(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """`rank 3 on n1`; empty without either."""
    text = f"{'rank' if len(ranks) == 1 else 'ranks'} {format_numbers(ranks)}" if ranks else ""
    return " on ".join(filter(None, (text, fold(nodes))))
