"""The notification of a run's new state, in the forms that hooks send: a sentence, a text for people, JSON, and environment variables. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from typing import Any

from orchestrator.run import RunRecord
from orchestrator.verdict.conditions import WORDS

_MAX_VARIABLE = 4000  # characters: a long message must not exceed the system's limit for the environment


@dataclass(frozen=True, slots=True)
class Notification:
    """A run in the state that its hooks report."""

    record: RunRecord
    nodes: Sequence[str]
    host: str
    """The machine that supervises the run."""
    folder: str
    """The run's record on that machine."""
    condition: str | None = None
    """The name of a condition of a run that continues, such as NO_PROGRESS; None for a notification about a new state."""
    evidence: str = ""
    """The evidence of the condition; empty if the condition is over."""
    is_restart: bool = False
    """True for the first state of another attempt."""

    @property
    def events(self) -> Sequence[str]:
        """The words of a hook's `on` that this notification is for."""
        if self.condition is not None:
            return (self.condition,)
        state = self.record.state
        return (state.value, "RESTARTED") if self.is_restart and not state.final else (state.value,)

    @property
    def sentence(self) -> str:
        """One line: the run, its state or condition, and the reason as far as it is known."""
        attempt = f", attempt {self.record.attempt}" if self.record.attempt > 1 else ""
        if self.condition is None:
            reason = (self.record.message or "").partition("\n")[0]
            line = f"run {self.record.id} is {self.record.state.value}{attempt}" + (f": {reason}" if reason else "")
        elif self.evidence:
            line = f"run {self.record.id}{attempt}: {WORDS[self.condition]}: {self.evidence}"
        else:
            line = f"run {self.record.id}{attempt}: no longer: {WORDS[self.condition]}"
        return "".join(character if character.isprintable() else " " for character in line)

    def text(self) -> str:
        """The notification for a person: the sentence, cause and remedy, and where to look."""
        failure = self.record.failure
        cause = [f"cause: {failure.cause}"] if failure is not None and failure.cause else []
        remedy = [f"remedy: {step}" for step in failure.remedy] if failure is not None else []
        location = f"on {self.host}: orch status {self.record.id}   (record: {self.folder})"
        return "\n".join([self.sentence, "", *cause, *remedy, location, ""])

    def json(self) -> str:
        """The notification as one JSON object; `text` is what most chat services show."""
        record = self.record
        failure: dict[str, Any] | None = None if record.failure is None else asdict(record.failure)
        fields = {
            "text": self.sentence,
            "run": record.id,
            "state": record.state.value,
            "attempt": record.attempt,
            "condition": self.condition,
            "evidence": self.evidence,
            "message": record.message,
            "failure": failure,
            "exit": None if record.exit is None else asdict(record.exit),
            "attempts": list(record.attempts),
            "nodes": list(self.nodes),
            "note": record.note,
            "tags": list(record.tags),
            "host": self.host,
            "folder": self.folder,
        }
        return json.dumps(fields)

    def variables(self) -> dict[str, str]:
        """The environment variables of a command."""
        return {
            "ORCH_RUN_ID": self.record.id,
            "ORCH_STATE": self.record.state.value,
            "ORCH_ATTEMPT": str(self.record.attempt),
            "ORCH_CONDITION": self.condition or "",
            "ORCH_MESSAGE": self.sentence[:_MAX_VARIABLE],
            "ORCH_RUN_FOLDER": self.folder,
        }

    def email(self, recipients: Sequence[str]) -> bytes:
        """The notification as an e-mail."""
        message = EmailMessage()
        message["To"] = ", ".join(recipients)
        message["Subject"] = f"[orch] {self.sentence[:200]}"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(self.text().encode("utf-8", "replace").decode())
        return message.as_bytes()
