"""Records of alpaca and of ShareGPT as messages. No torch here."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from trainer.data.json_lines import kind_of
from trainer.values import JsonValue

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation"), "tool"),
}
"""The roles of templates by the names that ShareGPT and its descendants have for them."""


def with_messages(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Return a record of alpaca or ShareGPT as one with messages, and any other as it is.
    Raises ValueError: a value is missing or of another kind.
    """
    if {"messages", "prompt", "completion"} & set(record):
        return record
    if "conversations" in record:
        return {"messages": [*_system(record), *_turns(record["conversations"])], "tools": record.get("tools")}
    return (
        {"messages": [*_system(record), *_history(record), *_instruction(record)]}
        if "instruction" in record
        else record
    )


def _system(record: Mapping[str, Any]) -> List[Dict[str, str]]:
    return [{"role": "system", "content": _text(record, "system")}] if record.get("system") else []


def _turns(conversations: JsonValue) -> List[Dict[str, str]]:
    if not isinstance(conversations, list) or not conversations:
        raise ValueError(
            "conversations is empty"
            if conversations == []
            else f"conversations is {kind_of(conversations)}: a list is needed"
        )
    messages = []
    for number, turn in enumerate(conversations):
        start = f"conversations[{number}]"
        if not isinstance(turn, dict):
            raise ValueError(f"{start} is {kind_of(turn)}, no turn")
        sender = turn.get("from")
        if not isinstance(sender, str) or sender not in ROLES:
            raise ValueError(f"{start} has from={sender!r}: allowed: {', '.join(ROLES)}")
        messages.append({"role": ROLES[sender], "content": _text(turn, "value", start)})
    return messages


def _history(record: Mapping[str, Any]) -> List[Dict[str, str]]:
    """The turns before the instruction: pairs of a question and an answer."""
    history = record.get("history") or []
    pairs = history if isinstance(history, list) else [history]
    for number, pair in enumerate(pairs):
        if not isinstance(pair, list) or [kind_of(text) for text in pair] != ["text", "text"]:
            raise ValueError(f"history[{number}] is no pair of texts, a question and its answer")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(("user", "assistant"), pair)]


def _instruction(record: Mapping[str, Any]) -> List[Dict[str, str]]:
    question = _text(record, "instruction")
    if record.get("input"):
        question += "\n" + _text(record, "input")
    answer = _text(record, "output")
    if not answer:
        raise ValueError("output is empty")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _text(values: Mapping[str, Any], name: str, owner: str = "") -> str:
    text = values.get(name)
    if not isinstance(text, str):
        path = f"{owner} has" if owner else "the record has"
        raise ValueError(
            f"{path} no {name}" if text is None else f"{path} a {kind_of(text)} as {name}: a text is needed"
        )
    return text
