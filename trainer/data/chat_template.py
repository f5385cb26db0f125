"""A chat template, rendered as transformers does, with the places of the answers in its text. No torch here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from typing import Any, Callable, List, Mapping, Sequence, Tuple

from trainer.data.chat_records import Record
from trainer.errors import UserError
from trainer.values import Foreign, JsonValue

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
START, END = "\ufdd0", "\ufdd1"  # not characters of any text, by the Unicode standard


class ChatTemplate:
    """The template of a tokenizer, compiled in Jinja's sandbox."""

    def __init__(self, text: str, special: Mapping[str, str], source: str) -> None:
        """
        Args:
            text: Jinja.
            special: variables with the texts of special tokens.
            source: the tokenizer, for messages.

        Raises:
            UserError: there is none, it is no Jinja, or the package is missing.
        """
        if not text:
            raise UserError(
                f"data.tokenizer: {source} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), "
                'which records with messages need: write one, or use {"prompt": TEXT, "completion": TEXT}'
            )
        if importlib.util.find_spec("jinja2") is None:
            raise UserError(f"chat templates need the package jinja2, which is not installed for {sys.executable}")
        self.source, self.special, self.is_marked = source, special, bool(GENERATION.search(text))
        self._jinja = importlib.import_module("jinja2")
        try:
            self._template = _environment().from_string(text)
        except self._jinja.TemplateError as exc:
            raise UserError(f"data.tokenizer: {source}: its chat template is no Jinja: {exc}") from exc

    def render(self, record: Record) -> Tuple[str, List[Tuple[int, int]]]:
        """
        The text of a conversation, and start and end of each trained part in it.
        Raises UserError: the template fails, or the parts cannot be found; names the record.
        """
        text = self._text(record, len(record.messages))
        if self.is_marked:
            if re.search(f"[{START}{END}]", json.dumps(record.messages, ensure_ascii=False)):
                raise UserError(f"{record.origin}: contains U+FDD0 or U+FDD1, which are no characters of any text")
            text, parts = _marked(text)
            start = len(self._prompt(record, record.first_answer, text)) if record.first_answer else 0
            parts = [(max(start, begin), end) for begin, end in parts if end > start]
        else:
            parts = [self._answer(record, number, text) for number in record.answers()]
        if not parts:
            raise UserError(f"{record.origin}: {self.source}: its chat template marks no part to be trained")
        return text, parts

    def question(self, text: str) -> str:
        """The text of a conversation that begins with this message of the user, up to the answer."""
        record = Record("sample_prompts", ({"role": "user", "content": text},))
        return _unmarked(self._text(record, 1, prompts=True))

    def _answer(self, record: Record, number: int, text: str) -> Tuple[int, int]:
        """Start and end of a message in the text of all, from the text before it and that up to it."""
        start, until = len(self._prompt(record, number, text)), self._text(record, number + 1)
        if not text.startswith(until) or len(until) < start:
            self._refuse(record, f"messages 1 to {number + 1}")
        return start, len(until)

    def _prompt(self, record: Record, count: int, text: str) -> str:
        prompt = _unmarked(self._text(record, count, prompts=True))
        if not text.startswith(prompt):
            self._refuse(record, f"the prompt before message {count + 1}")
        return prompt

    def _refuse(self, record: Record, unstable: str) -> None:
        raise UserError(
            f"{record.origin}: the chat template of {self.source} writes {unstable} differently if more messages follow, so the answers "
            "cannot be found: enclose them in {% generation %} and {% endgeneration %} in the template, or write "
            "one record per answer, with prompt and completion as lists of messages"
        )

    def _text(self, record: Record, count: int, *, prompts: bool = False) -> str:
        messages: Sequence[Any] = record.messages[:count]
        try:
            text: str = self._template.render(
                messages=messages, tools=record.tools, documents=None, add_generation_prompt=prompts, **self.special
            )
        except self._jinja.TemplateError as exc:
            hint = "; a date would change the data from day to day: write it into the template" * (
                "strftime_now" in str(exc)
            )
            raise UserError(f"{record.origin}: the chat template of {self.source} fails: {exc}{hint}") from exc
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError) as exc:
            # what expressions of a template raise
            raise UserError(
                f"{record.origin}: the chat template of {self.source} fails: {type(exc).__name__}: {exc}"
            ) from exc
        return text


def _marked(text: str) -> Tuple[str, List[Tuple[int, int]]]:
    """The text without marks, and the parts between them."""
    parts, plain = [], 0
    pieces = re.split(f"[{START}{END}]", text)
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append((plain, plain + len(piece)))
        plain += len(piece)
    return "".join(pieces), [part for part in parts if part[0] < part[1]]


def _unmarked(text: str) -> str:
    return text.replace(START, "").replace(END, "")


def _environment() -> Foreign:
    """
    The environment of transformers, without its `strftime_now`.

    A template that finds none takes a fixed date, so that the same records have the same tokens tomorrow.
    """
    sandbox = importlib.import_module("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), "jinja2.ext.loopcontrols"]
    )

    def to_json(value: JsonValue, indent: int | str | None = None, **options: Any) -> str:
        """Jinja's own filter escapes HTML."""
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    def raise_exception(message: str) -> None:
        raise importlib.import_module("jinja2").TemplateError(message)

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment


def _generation_tag() -> Foreign:
    """The extension for {% generation %}: it encloses what the assistant writes in START and END."""
    nodes, ext = importlib.import_module("jinja2.nodes"), importlib.import_module("jinja2.ext")

    def parse(self: Foreign, parser: Foreign) -> Foreign:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_enclose"), [], [], body).set_lineno(line)

    def enclose(_: object, caller: Callable[[], str]) -> str:
        return f"{START}{_unmarked(caller())}{END}"

    return type("Generation", (ext.Extension,), {"tags": {"generation"}, "parse": parse, "_enclose": enclose})
