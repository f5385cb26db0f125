"""The terminal of the viewer, for the prompts of logins that the owner of a run makes."""

from __future__ import annotations

from orchestrator.endpoint.access import PromptCancelled, Terminal
from orchestrator.supervision.link import OwnerLink


class ViewersTerminal(Terminal):
    """Lets the viewer prompt its user."""

    def __init__(self, link: OwnerLink, *, is_terminal: bool) -> None:
        super().__init__()
        self._link = link
        self._is_terminal = is_terminal

    def is_available(self) -> bool:
        """Return whether there is a viewer on a terminal."""
        return self._is_terminal and self._link.is_open

    def prompt(self, question: str, *, echo: bool = False) -> bytes:
        """Prompt with the terminal locked, and wait for the answer; if there is none in time, no prompt follows."""
        answer = self._link.answer_to(question, echo=echo)
        if answer is None:
            self.is_cancelled = True
            raise PromptCancelled
        return answer
