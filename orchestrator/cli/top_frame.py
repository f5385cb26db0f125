"""The frame of `orch top`: the lines of one screen, from the overview of a run and what the user has marked and opened. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.cli.columns import filled, width_of
from orchestrator.cli.overview_text import (
    attempt_text,
    card_age,
    cards_text,
    safe,
    saved_text,
    space_text,
    training_text,
)
from orchestrator.node.number_text import format_numbers
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.usecases.runs.look import NodeView, Overview, RankView  # imports what queries nodes

KEYS = "q quit  Enter open  l log  s stacks  d diagnose  x stop  ? help"
HELP = (
    "Up, Down, j, k   mark a row            Enter, Right, Left   open or close a node",
    "l   log of the marked rank or node     s   stacks of the ranks now",
    "d   diagnose the run                   x   stop the run (asks)",
    "q   leave; the run continues           ?   this help",
)
MOST_VERDICT_LINES = 3
LEAST_TABLE_LINES = 5
MOST_MOMENTS = 5
COLOURS = {"healthy": 32, "warning": 33, "failing": 31, "waiting": 36, "over": 1}
REVERSE, DIM, BOLD = 7, 2, 1
MIB = 1 << 20
LEAST_LATE_S = 0.001


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a node, or a rank or card of an open one; the cells by the name of the column."""

    node: str
    rank: int | None
    cells: Mapping[str, str]
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The choices of the user: the marked row, the open nodes, a question or note at the bottom, the help."""

    row: int = 0
    open: frozenset[str] = frozenset()
    note: str = ""
    is_question: bool = False
    """The note is a question, which the next key answers."""
    is_help: bool = False
    colour: bool = False
    has_keys: bool = True
    """False for a frame that is printed: no row is marked, and no keys are shown."""


# The columns in the order of the screen, with their importance: where not all fit, the least important are left out.
COLUMNS = {
    "NODE": 0,
    "STATE": 1,
    "STEP": 2,
    "PHASE": 3,
    "BEHIND": 4,
    "LATE": 5,
    "CARDS": 6,
    "SEEN": 7,
    "CPU WAIT": 8,
    "CARD MEM": 11,
    "MEM": 9,
    "DISK FREE": 10,
    "SHM FREE": 12,
    "RDMA IN": 13,
    "RDMA OUT": 14,
    "ERRORS": 15,
    "HEAT": 16,
}


def frame(found: Overview, width: int, height: int, selection: Selection) -> list[str]:
    """
    The lines of the screen, at most `height`, of at most `width` columns.

    The rows are those of `rows`; the marked one is always shown.
    """
    header = _header(found, width, selection)
    footer = [_footer(selection, width)] if selection.has_keys or selection.note else []
    timeline = [] if selection.is_help else _timeline(found, width)
    spare = height - len(header) - len(footer) - LEAST_TABLE_LINES
    timeline = timeline[-spare + 1 :] if spare > 1 and timeline else []
    timeline = ["", *timeline] if timeline else []
    body_height = max(0, height - len(header) - len(footer) - len(timeline))
    help_lines = [filled(line, width) for line in HELP][:body_height]
    body = help_lines if selection.is_help else _table(found, width, body_height, selection)
    filler = [""] * (body_height - len(body) if selection.has_keys else 0)
    return [line.rstrip() for line in (*header, *body, *filler, *timeline, *footer)][:height]


def rows(found: Overview, open_nodes: frozenset[str]) -> list[Row]:
    """The rows: nodes first that do not answer or whose ranks spread, each open one followed by its ranks and cards."""
    listed = []
    for node in sorted(found.nodes, key=lambda node: node.spread):
        listed.append(_node_row(node))
        if node.node in open_nodes:
            listed += [_rank_row(node.node, rank) for rank in node.ranks]
            listed += _card_rows(node)
    # programs, agents and tools of other versions report some of the texts
    return [
        replace(row, cells={name: text if text.isprintable() else safe(text) for name, text in row.cells.items()})
        for row in listed
    ]


def press(selection: Selection, key: str, listed: Sequence[Row]) -> Selection:
    """The selection after a key that moves or opens; other keys change nothing but end the help."""
    last = max(0, len(listed) - 1)
    moves: Mapping[str, Callable[[int], int]] = {
        **dict.fromkeys(("up", "k"), lambda row: row - 1),
        **dict.fromkeys(("down", "j"), lambda row: row + 1),
        "page up": lambda row: row - 10,
        "page down": lambda row: row + 10,
    }
    selection = replace(selection, note="", is_help=key == "?" and not selection.is_help, row=min(selection.row, last))
    if key in moves:
        return replace(selection, row=min(last, max(0, moves[key](selection.row))))
    if not listed or key not in ("enter", "right", "left"):
        return selection
    node = listed[selection.row].node
    is_open = node in selection.open
    if key == "left" or (key == "enter" and is_open):
        first = next(index for index, row in enumerate(listed) if row.node == node)
        return replace(selection, open=selection.open - {node}, row=first)
    return replace(selection, open=selection.open | {node})


# the parts of the screen


def _header(found: Overview, width: int, selection: Selection) -> list[str]:
    title = f"{found.id}  {found.state}" + (f"  {clock(found.duration_s)}" if found.duration_s is not None else "")
    verdict = safe(found.verdict)
    lines = textwrap.wrap(verdict, max(10, width)) or [""]
    if len(lines) > MOST_VERDICT_LINES:
        lines = [*lines[: MOST_VERDICT_LINES - 1], " ".join(lines[MOST_VERDICT_LINES - 1 :])]
    values = [training_text(found) and f"step {training_text(found)}"]
    values.append(f"saved: {text}" if (text := saved_text(found)) else "")
    values.append(f"attempt {attempt_text(found)}")
    values.append(f"cards {cards_text(*found.cards)}" if found.cards is not None else "")
    return [
        _styled(filled(title, width), BOLD, selection),
        *(_styled(filled(line, width), COLOURS[found.health], selection) for line in lines),
        *_flowed([value for value in values if value], width),
        "",
    ]


def _flowed(parts: Sequence[str], width: int) -> list[str]:
    """The parts on as few lines as they need, none of them cut if it fits."""
    lines = [""]
    for part in map(safe, parts):
        joined = f"{lines[-1]}   {part}" if lines[-1] else part
        if width_of(joined) > width and lines[-1]:
            lines.append(part)
        else:
            lines[-1] = joined
    return [filled(line, width) for line in lines]


def _table(found: Overview, width: int, height: int, selection: Selection) -> list[str]:
    listed = rows(found, selection.open)
    if not listed or height < 1:
        return [filled("no node has been seen yet", width)][:height]
    margin = "  " if selection.has_keys and not selection.colour else ""  # the marked row has > there
    columns = _columns(listed, width - len(margin))
    header = "  ".join(filled(name, columns[name]) for name in columns)
    marked = min(selection.row, len(listed) - 1) if selection.has_keys else -1
    shown = max(1, height - 1)
    first = max(0, min(marked - shown // 2, len(listed) - shown))
    lines = [_styled(filled(margin + header, width), DIM, selection)]
    for index, row in enumerate(listed[first : first + shown], start=first):
        cells = "  ".join(filled(row.cells.get(name, ""), columns[name]) for name in columns)
        text = filled((">" + margin[1:] if margin and index == marked else margin) + cells, width)
        style = REVERSE if index == marked else COLOURS["failing"] if row.is_bad else 0
        lines.append(_styled(text, style, selection))
    return lines[:height]


def _columns(listed: Sequence[Row], width: int) -> dict[str, int]:
    """The columns that have a value and fit, with their widths: the most important ones first."""
    chosen: dict[str, int] = {}
    used = -2
    for name in sorted(COLUMNS, key=COLUMNS.__getitem__):
        cells = [row.cells[name] for row in listed if row.cells.get(name)]
        needed = max([len(name), *map(width_of, cells)])
        if cells and (used + 2 + needed <= width or not chosen):
            chosen[name] = min(needed, width)
            used += 2 + needed
    return {name: chosen[name] for name in COLUMNS if name in chosen}


def _timeline(found: Overview, width: int) -> list[str]:
    """The findings with their age, and the last moments, each on one line."""
    lines = [
        f"! {finding.text}" + (f" (for {clock(finding.age_s)})" if finding.age_s is not None else "")
        for finding in found.findings[:MOST_MOMENTS]
    ]
    lines += [
        f"{time.strftime('%m-%d %H:%M:%S', time.localtime(moment.time_s))}  {moment.text}"
        for moment in found.moments[-MOST_MOMENTS:]
    ]
    return [filled(safe(line), width) for line in lines]


def _footer(selection: Selection, width: int) -> str:
    if selection.note:
        return _styled(filled(safe(selection.note), width), BOLD, selection)
    return _styled(filled(KEYS, width), DIM, selection)


def _styled(text: str, style: int, selection: Selection) -> str:
    return f"\x1b[{style}m{text.rstrip() if style != REVERSE else text}\x1b[0m" if selection.colour and style else text


# the rows


def _node_row(node: NodeView) -> Row:
    ranks = node.ranks
    cells = {
        "NODE": node.node + (f" ({format_numbers(rank.rank for rank in ranks)})" if ranks else ""),
        "STATE": "no answer" if node.problem else node.agent,
        "STEP": "-".join(dict.fromkeys(map(str, node.steps))) if node.steps else "",
        "PHASE": ",".join(node.phases),
        "BEHIND": _largest([rank.behind for rank in ranks], str),
        "LATE": _largest([rank.late_s for rank in ranks], _late),
        "CPU WAIT": _largest([rank.cpu_wait for rank in ranks], _share),
        "SEEN": _age_text(node),
    }
    if node.cards is not None:
        cells["CARDS"] = cards_text(node.cards.low_percent, node.cards.high_percent)
        cells["CARD MEM"] = space_text(node.cards.memory_mib * MIB) if node.cards.memory_mib is not None else ""
        cells["HEAT"] = f"{node.cards.hottest_c:.0f} C" if node.cards.hottest_c is not None else ""
    if node.machine is not None:
        total, available = node.machine["memory_total"], node.machine["memory_available"]
        cells["MEM"] = _share(1 - available / total) if total and available is not None else ""
        cells["DISK FREE"] = space_text(node.machine["disk"]["free"]) if node.machine["disk"] else ""
        cells["SHM FREE"] = space_text(node.machine["shm"]["free"]) if node.machine["shm"] else ""
    if node.rate is not None:
        cells["RDMA IN"] = f"{space_text(node.rate.received_per_s)}/s"
        cells["RDMA OUT"] = f"{space_text(node.rate.sent_per_s)}/s"
        cells["ERRORS"] = f"+{node.rate.errors}" if node.rate.errors else ""
    return Row(node.node, None, cells, is_bad=bool(node.problem) or node.agent in ("gone", "FAILED"))


def _rank_row(node: str, rank: RankView) -> Row:
    cells = {
        "NODE": f"  rank {rank.rank}",
        "STATE": rank.state,
        "STEP": "" if rank.step is None else str(rank.step),
        "PHASE": rank.phase or "",
        "BEHIND": "" if rank.behind is None else str(rank.behind),
        "LATE": _largest([rank.late_s], _late),
        "CPU WAIT": _largest([rank.cpu_wait], _share),
        "SEEN": "" if rank.age_s is None else clock(rank.age_s),
    }
    return Row(node, rank.rank, cells, is_bad=bool(rank.behind))


def _card_rows(node: NodeView) -> list[Row]:
    if node.cards is None:
        return []
    found = []
    for card in node.cards.each:
        cells = {
            "NODE": f"  card {card.index}",
            "STATE": card.state or "",
            "CARDS": "" if card.percent is None else f"{card.percent:.0f} %",
            "CARD MEM": "" if card.memory_mib is None else space_text(card.memory_mib * MIB),
            "HEAT": "" if card.temperature_c is None else f"{card.temperature_c:.0f} C",
            "SEEN": card_age(node.cards),
        }
        found.append(Row(node.node, None, cells))
    return found


def _age_text(node: NodeView) -> str:
    """The age of the values of a node that does not answer; else that of the newest progress."""
    if node.age_s is not None:
        return f"{clock(node.age_s)} ago"
    ages_s = [rank.age_s for rank in node.ranks if rank.age_s is not None]
    return clock(min(ages_s)) if ages_s and node.agent == "running" else ""


def _largest(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return text(max(known)) if known else ""


def _late(seconds: float) -> str:
    return "" if seconds < LEAST_LATE_S else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _share(share: float) -> str:
    return f"{share:.0%}"
