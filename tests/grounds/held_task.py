"""task=held_task:Held, a file that travels with the code: the shared GPT, which waits while a test wants to act in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.tasks.gpt import Gpt

HOLD = "hold"
"""While a file of this name is in `out`, no step after the first checkpoint is made."""


class Held(Gpt):
    """As the GPT, number for number."""

    def loss(self, model: Any, batch: Any) -> Any:  # noqa: ANN401 -- as in Task
        out = Path(self.config.out or "out")
        while (out / HOLD).exists() and any(out.glob("step_*/manifest.json")):
            time.sleep(0.05)
        return super().loss(model, batch)
