"""The documents in a piece of a file: each record of JSON, JSON Lines or Parquet is one, and each text file. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, NamedTuple, Tuple

from trainer.data.corpus.compressed import is_compressed, open_text
from trainer.data.corpus.pieces import LINES, LIST, ROWS, Piece, parquet_file
from trainer.data.json_lines import keys_of, kind_of, parse_line, reason_of
from trainer.errors import UserError
from trainer.values import JsonValue

BLOCK_BYTES = 1 << 16
COUNTED_BYTES = 1 << 20


class Text(NamedTuple):
    """A document, or a block of one that is too long to be tokenized at once."""

    text: str
    begins: bool
    ends: bool


def texts_of(piece: Piece, field: str) -> Iterator[Text]:
    """
    Read a piece.

    Args:
        piece: of a text file, JSON, JSON Lines or Parquet.
        field: the text of a record.

    Raises:
        UserError: names file, line or row, and what is wrong there.
    """
    if piece.form == ROWS:
        yield from _rows(piece, field)
    elif piece.form == LINES:
        yield from _records(piece, field)
    elif piece.form == LIST:
        yield from _listed(piece.path, field)
    else:
        yield from _blocks(piece)


def _records(piece: Piece, field: str) -> Iterator[Text]:
    for offset, line in _lines(piece, is_text=False):
        if not line.strip():
            continue
        try:
            yield Text(_field(parse_line(line), field), begins=True, ends=True)
        except (ValueError, RecursionError) as exc:  # also of UTF-8 and JSON
            raise UserError(f"{piece.path}, line {_line_number(piece.path, offset)}: {reason_of(exc)}") from exc


def _listed(path: Path, field: str) -> Iterator[Text]:
    source = str(path)
    try:
        with open_text(path) as file:
            records = parse_line(file.read())
        for number, record in enumerate(records, 1):
            source = f"{path}, record {number}"
            yield Text(_field(record, field), begins=True, ends=True)
    except (ValueError, RecursionError) as exc:  # also of UTF-8 and JSON
        raise UserError(f"{source}: {reason_of(exc)}") from exc


def _field(record: JsonValue, field: str) -> str:
    """Raises ValueError: the record has no such text."""
    if not isinstance(record, dict):
        raise ValueError(f"a {kind_of(record)}, no record")  # of the file, not of a type
    if field not in record:
        remedy = (
            "chats are not tokenized before: name the file as data.paths"
            if "messages" in record
            else "name another --field"
        )
        raise ValueError(f"no field {field!r}: {keys_of(record)}; {remedy}")
    text = record[field]
    if not isinstance(text, str):
        raise ValueError(f"{field} is {kind_of(text)}: a text is needed")
    return text


def _rows(piece: Piece, field: str) -> Iterator[Text]:
    file = parquet_file(piece.path)
    names = file.schema_arrow.names
    if field not in names:
        raise UserError(f"{piece.path}: no column {field!r}: it has {', '.join(names[:6])}; name another --field")
    first = sum(file.metadata.row_group(number).num_rows for number in range(piece.start))
    column = file.read_row_group(piece.start, columns=[field]).column(0)
    for number, text in enumerate((value.as_py() for value in column), first + 1):
        if not isinstance(text, str):
            raise UserError(
                f"{piece.path}, row {number}: {field} is {'null' if text is None else 'no text'}: a text is needed"
            )
        yield Text(text, begins=True, ends=True)


def _blocks(piece: Piece) -> Iterator[Text]:
    """Blocks end before a line that does not begin with a space, as tokenizers join spaces and line breaks."""
    size = None if is_compressed(piece.path) else piece.path.stat().st_size
    block, begin = bytearray(), 0
    for offset, line in _lines(piece, is_text=True):
        if len(block) >= BLOCK_BYTES and _is_border(line):
            yield Text(_decoded(piece.path, bytes(block), begin), begin == 0, ends=False)
            block.clear()
        begin = begin if block else offset
        block += line
    if block:
        yield Text(_decoded(piece.path, bytes(block), begin), begin == 0, size in (None, begin + len(block)))


def _decoded(path: Path, block: bytes, begin: int) -> str:
    try:
        return block.decode("utf-8-sig" if begin == 0 else "utf-8")
    except UnicodeDecodeError as exc:
        line = _line_number(path, begin + exc.start)
        raise UserError(f"{path}, line {line}: not valid UTF-8 at byte {begin + exc.start} of the file") from exc


def _lines(piece: Piece, *, is_text: bool) -> Iterator[Tuple[int, bytes]]:
    """The lines of a piece with their offsets; in text also the lines after its end up to the next border."""
    with open_text(piece.path) as file:
        offset, is_inside = 0, piece.start == 0
        if piece.start:
            file.seek(piece.start - 1)
            file.readline()
            offset = file.tell()
        for line in iter(file.readline, b""):
            if not is_text or _is_border(line):
                if offset >= piece.stop:
                    return
                is_inside = True
            if is_inside:
                yield offset, line
            offset += len(line)


def _is_border(line: bytes) -> bool:
    return not line[:1].isspace()


def _line_number(path: Path, offset: int) -> int:
    """The number of the line with this byte, counted from the begin of the file."""
    number = 1
    with open_text(path) as file:
        while offset > 0:
            part = file.read(min(offset, COUNTED_BYTES))
            number += part.count(b"\n")
            offset -= len(part)
    return number
