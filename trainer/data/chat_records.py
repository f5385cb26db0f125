"""Chat records in files of JSON Lines, or of one list in JSON, each record checked. No torch here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from trainer.data.foreign_records import with_messages
from trainer.data.formats import RECORD_LISTS
from trainer.data.json_lines import keys_of, kind_of, parse_line, reason_of
from trainer.errors import UserError
from trainer.values import JsonValue

ASSISTANT = "assistant"
NAMED_AT_MOST = 3
FORMS = (
    '{"messages": [{"role": …, "content": …}, …]}, {"prompt": …, "completion": …}, {"instruction": …, "output": …} or '
    '{"conversations": [{"from": …, "value": …}, …]}'
)


@dataclass(frozen=True)
class Record:
    """
    One conversation: messages for the template, or else plain texts.

    origin: file and line, for messages.
    first_answer: answers of the assistant are trained from this message on.
    tools: for the template, as the record has them.
    """

    origin: str
    messages: Sequence[Mapping[str, Any]] = ()
    first_answer: int = 0
    tools: Any = None
    prompt: str = ""
    completion: str = ""

    def answers(self) -> List[int]:
        """The numbers of the messages that are trained."""
        return [
            number
            for number, message in enumerate(self.messages)
            if number >= self.first_answer and message["role"] == ASSISTANT
        ]


def read_records(path: Path, key: str) -> List[Record]:
    """
    Read a file; empty lines are left out.
    Raises UserError: it cannot be read, or has invalid lines, of which the first are named.
    """
    records: List[Record] = []
    problems: List[str] = []
    unit = "record" if path.suffix in RECORD_LISTS else "line"
    try:
        for number, read in _list(path) if path.suffix in RECORD_LISTS else _lines(path):
            try:
                records.append(_record(read(), f"{path}, {unit} {number}"))
            except (ValueError, RecursionError) as exc:  # also of UTF-8 and JSON
                problems.append(f"{unit} {number}: {reason_of(exc)}")
    except OSError as exc:
        raise UserError(f"{key}: {path}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise UserError(f"{key}: {path}: {reason_of(exc)}; the file has to be a list of records") from exc
    if problems:
        more = f"; and {len(problems) - NAMED_AT_MOST} more {unit}s" if len(problems) > NAMED_AT_MOST else ""
        raise UserError(f"{key}: {path}: {'; '.join(problems[:NAMED_AT_MOST])}{more}; a {unit} has to be {FORMS}")
    return records


def _lines(path: Path) -> Iterator[Tuple[int, Callable[[], JsonValue]]]:
    """The number of each line that is not empty, and a function that parses it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, functools.partial(parse_line, line)


def _list(path: Path) -> Iterator[Tuple[int, Callable[[], JsonValue]]]:
    """The number of each value in a list, and a function that returns it. Raises ValueError: the file is no list."""
    found = parse_line(path.read_bytes())
    if not isinstance(found, list):
        raise ValueError(f"a {kind_of(found)}")
    for number, value in enumerate(found, 1):
        yield number, functools.partial(_same, value)


def _same(value: JsonValue) -> JsonValue:
    return value


def _record(value: JsonValue, origin: str) -> Record:
    """Raises ValueError: it is no record."""
    if not isinstance(value, dict):
        raise ValueError(f"a {kind_of(value)}, no record")  # of the file, not of a type
    value = with_messages(value)
    has_messages, has_prompt = "messages" in value, "prompt" in value or "completion" in value
    if has_messages == has_prompt:
        raise ValueError(
            "both messages and prompt" if has_messages else f"neither messages nor prompt: {keys_of(value)}"
        )
    if has_messages:
        record = Record(origin, _messages(value["messages"], "messages"), tools=value.get("tools"))
        return _with_answer(record, "messages")
    missing = next((name for name in ("prompt", "completion") if name not in value), None)
    if missing:
        raise ValueError(f"has no {missing}")
    prompt, completion = value["prompt"], value["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise ValueError("completion is empty")
        return Record(origin, prompt=prompt, completion=completion)
    before = _messages(prompt, "prompt")
    messages = (*before, *_messages(completion, "completion"))
    return _with_answer(Record(origin, messages, len(before), value.get("tools")), "completion")


def _with_answer(record: Record, name: str) -> Record:
    if not record.answers():
        raise ValueError(f"{name} has no message with role={ASSISTANT}, so nothing would be trained")
    return record


def _messages(value: JsonValue, name: str) -> Sequence[Dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {kind_of(value)}: a list of messages is needed" if value else f"{name} is empty")
    for number, message in enumerate(value):
        start = f"{name}[{number}]"
        if not isinstance(message, dict):
            raise ValueError(f"{start} is {kind_of(message)}, no message")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ValueError(f"{start} has no role, a text such as user or {ASSISTANT}")
        content = message.get("content")
        if not isinstance(content, str) and not message.get("tool_calls"):
            found = "no content" if content is None else f"a {kind_of(content)} as content"
            raise ValueError(f"{start} has {found}: a text is needed")
    return tuple(value)
