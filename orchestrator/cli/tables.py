"""Tables as lines of text, in one style: columns, and on a narrow terminal cells of several lines, or one entry per row. No name is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.cli.columns import filled, width_of

GAP = 2  # columns
LEAST_CUT = 12  # characters to which a column is shortened even on a narrow terminal
Row = Sequence[str]


def table_lines(columns: Row, rows: Sequence[Row], width: int | None = None, cut: Sequence[str] = ()) -> Iterator[str]:
    """
    The lines of a table.

    Args:
        width: that of the terminal; None if nothing limits it.
        cut: the columns that are shortened to the width, so that each row is one line.
    """
    widths = [max(map(width_of, column)) for column in zip(columns, *rows, strict=True)]
    if width is None or not rows:
        yield from _lines([columns, *rows], widths)
        return
    for_cells = width - GAP * (len(columns) - 1)
    shortened = _shortened(columns, widths, for_cells - sum(widths), cut)
    longest = [max(map(_longest_word, column)) for column in zip(columns, *rows, strict=True)]
    if sum(shortened) <= for_cells:
        yield from _lines([columns, *rows], shortened)
    elif sum(longest) <= for_cells and not cut:
        yield from _wrapped([columns, *rows], longest, widths, for_cells - sum(longest))
    else:
        yield from _entries(columns, rows, width)


def _lines(rows: Sequence[Row], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        yield (" " * GAP).join(filled(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _shortened(columns: Row, widths: Sequence[int], free: int, cut: Sequence[str]) -> Sequence[int]:
    """The widths at which the columns `cut` share what the others leave."""
    result = list(widths)
    shortened = [index for index, name in enumerate(columns) if name in cut]
    left = free + sum(widths[index] for index in shortened)
    for position, index in enumerate(shortened):
        result[index] = min(widths[index], max(LEAST_CUT, left // (len(shortened) - position)))
        left -= result[index]
    return result


def _wrapped(rows: Sequence[Row], longest: Sequence[int], widths: Sequence[int], free: int) -> Iterator[str]:
    """Rows whose cells have several lines: each column gets its longest word, and a share of the free width."""
    result = list(longest)
    while free > 0 and (wanting := [index for index, width in enumerate(widths) if result[index] < width]):
        for index in wanting[:free]:
            result[index] += 1
        free -= len(wanting[:free])
    for row in rows:
        cells = [_words_in_lines(cell, width) for cell, width in zip(row, result, strict=True)]
        height = max(map(len, cells))
        yield from _lines([[(*cell, *[""] * height)[line] for cell in cells] for line in range(height)], result)


def _entries(columns: Row, rows: Sequence[Row], width: int) -> Iterator[str]:
    """One entry per row: the first cell, and below it the others that are not empty, with their headings."""
    indent = GAP + max(map(width_of, columns[1:]), default=0) + GAP
    for row in rows:
        yield row[0]
        for name, cell in zip(columns[1:], row[1:], strict=True):
            first, *more = _words_in_lines(cell, max(width - indent, _longest_word(cell)))
            if cell:
                yield f"{' ' * GAP}{filled(name, indent - 2 * GAP)}{' ' * GAP}{first}"
            yield from (" " * indent + line for line in more)


def _longest_word(text: str) -> int:
    return max(map(width_of, text.split(" ")))


def _words_in_lines(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, none of whose words is wider."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and width_of(lines[-1]) + 1 + width_of(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines
