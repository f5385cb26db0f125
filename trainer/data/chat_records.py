"""Chat records in files of JSON Lines, each line checked. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from trainer.data.json_lines import keys_of, kind_of, parse_line, reason_of
from trainer.errors import UserError
from trainer.values import JsonValue

ASSISTANT = "assistant"
NAMED_AT_MOST = 3
FORMS = '{"messages": [{"role": …, "content": …}, …]} or {"prompt": …, "completion": …}'


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

    Raises:
        UserError: it cannot be read, or has invalid lines, of which the first are named.
    """
    records: List[Record] = []
    problems: List[str] = []
    try:
        with path.open("rb") as file:
            for number, line in ((number, line) for number, line in enumerate(file, 1) if line.strip()):
                try:
                    records.append(_record(parse_line(line), f"{path}, line {number}"))
                except (ValueError, RecursionError) as exc:  # also of UTF-8 and JSON
                    problems.append(f"line {number}: {reason_of(exc)}")
    except OSError as exc:
        raise UserError(f"{key}: {path}: {exc.strerror}") from exc
    if problems:
        more = f"; and {len(problems) - NAMED_AT_MOST} more lines" if len(problems) > NAMED_AT_MOST else ""
        raise UserError(f"{key}: {path}: {'; '.join(problems[:NAMED_AT_MOST])}{more}; a line has to be {FORMS}")
    return records


def _record(value: JsonValue, origin: str) -> Record:
    """Raises ValueError: it is no record."""
    if not isinstance(value, dict):
        raise ValueError(f"a {kind_of(value)}, no record")  # of the file, not of a type
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
